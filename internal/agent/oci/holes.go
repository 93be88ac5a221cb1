package oci

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// A runtime program of the node's that has a known hole is told to operators, or refused. What could be probed without
// harm is not in the list, because it is closed here: crun makes whatever it is given for stdio the
// sandbox's (see ownNull), and a working directory that leads out of the container is init's to enter, not the program's.

// hole is one that lets what runs in a container reach its node.
type hole struct {
	program string
	ids     string
	// fixed are the first versions without it, one for each series that got the mend, in ascending order; what is newer
	// than the last one has it as well.
	fixed []string
	// packages are distributions' versions without it that keep an older number, up to their own revision.
	packages []string
	update   string // what to install
}

var holes = []hole{
	{
		program: "runc", ids: "CVE-2024-21626", fixed: []string{"1.1.12"},
		packages: []string{"1.1.5+ds1-1+deb12u1", "1.0.0~rc93+ds1-5+deb11u3"}, update: "runc 1.1.12 or later, in Debian 12 the package runc 1.1.5+ds1-1+deb12u1",
	},
	{
		// By races around what is mounted over files of /proc. With a user namespace the worst of it fails.
		program: "runc", ids: "CVE-2025-31133, CVE-2025-52565, CVE-2025-52881", fixed: []string{"1.2.8", "1.3.3", "1.4.0-rc.3"},
		update: "runc 1.2.8, 1.3.3 or later, or use crun, which has not got them",
	},
	{program: "crun", ids: "CVE-2022-27650", fixed: []string{"1.4.4"}, update: "crun 1.4.4 or later"},
}

// holesOf are the known holes of a program by its version and that of the package that it is from, "" if that is not known.
func holesOf(name, version, packaged string) (found []hole) {
	for _, h := range holes {
		if h.program == name && !h.mended(version, packaged) {
			found = append(found, h)
		}
	}
	return found
}

// mended reports whether a version has no longer got the hole. One that cannot be read is taken to be new: it is no release.
func (h *hole) mended(version, packaged string) bool {
	for _, p := range h.packages {
		// A revision of the same series of the distribution: the number at its end counts.
		series := strings.TrimRight(p, "0123456789")
		if rest, ok := strings.CutPrefix(packaged, series); ok {
			want, _ := strconv.Atoi(p[len(series):])
			if has, err := strconv.Atoi(rest); err == nil && has >= want {
				return true
			}
		}
	}
	v, ok := parseRelease(version)
	if !ok {
		return true
	}
	for i, text := range h.fixed {
		f, _ := parseRelease(text)
		sameSeries := v[0] == f[0] && v[1] == f[1]
		if (sameSeries || i == len(h.fixed)-1) && !v.before(f) {
			return true
		}
	}
	return false
}

// release is major, minor and patch, and the number of a release candidate; a release itself has the highest.
type release [4]int

func (r release) before(o release) bool {
	for i := range r {
		if r[i] != o[i] {
			return r[i] < o[i]
		}
	}
	return false
}

// parseRelease reads 1.8.1, 1.1.5+ds1, 1.4.0-rc.3 or 1.0.0~rc93+ds1.
func parseRelease(s string) (r release, ok bool) {
	s, _, _ = strings.Cut(s, "+")
	number, rest, candidate := strings.Cut(strings.ReplaceAll(s, "~", "-"), "-")
	parts := strings.Split(number, ".")
	if len(parts) < 2 || len(parts) > 3 {
		return r, false
	}
	for i, p := range parts {
		n, err := strconv.Atoi(p)
		if err != nil {
			return r, false
		}
		r[i] = n
	}
	r[3] = 1 << 30
	if rc, is := strings.CutPrefix(rest, "rc"); candidate && is {
		if r[3], _ = strconv.Atoi(strings.TrimLeft(rc, ".")); r[3] == 0 {
			r[3] = 1
		}
	}
	return r, true
}

// packaged is the version of the package that a file is from, "" if no package manager here knows one.
func packaged(ctx context.Context, path string) string {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	ask := func(name string, args ...string) string {
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.WaitDelay = time.Second
		out, err := cmd.Output()
		if err != nil {
			return ""
		}
		return strings.TrimSpace(plain(string(out)))
	}
	// On systems where /usr is merged the database may have the name without it.
	for _, p := range []string{path, strings.TrimPrefix(path, "/usr")} {
		if owner, _, ok := strings.Cut(ask("dpkg-query", "-S", p), ": "); ok {
			return ask("dpkg-query", "-W", "-f", "${Version}", owner)
		}
	}
	return ask("rpm", "-qf", "--qf", "%{VERSION}-%{RELEASE}", path)
}

// holesOfNode are sentences about the known holes of this node's program.
func (p *program) holesOfNode(ctx context.Context) (told []string) {
	if !p.usual() {
		return nil
	}
	if len(holesOf(p.name, p.version, "")) == 0 {
		return nil // by its version alone: no package need be asked for
	}
	from := packaged(ctx, p.path)
	what := p.String()
	if from != "" {
		what += " (package version " + from + ")"
	}
	for _, h := range holesOf(p.name, p.version, from) {
		told = append(told, fmt.Sprintf("%s has known vulnerabilities through which containers may reach the node: %s; install %s", what, h.ids, h.update))
	}
	return told
}
