package faults

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/nftables"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/agent/initbox"
	"github.com/musterhq/muster/internal/agent/network"
	"github.com/musterhq/muster/internal/imagetest"
)

// newContainerHost is a host whose nodes run containers, and the reference of an
// image of busybox there. The test is skipped where there can be none.
func newContainerHost(t *testing.T, change ...func(*api.ServerConfig)) (h *host, image string) {
	t.Helper()
	needContainers(t)
	busybox := imagetest.Busybox(t)
	h = newHost(t, change...)
	return h, h.archive("busybox", busybox)
}

func needContainers(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("containers need root")
	}
	realRuntime(t)
}

// realRuntime is the path of the runtime program that agents find.
func realRuntime(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"crun", "runc"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip("neither crun nor runc is installed")
	return ""
}

// archive puts an image onto this host, and is how a job names it.
func (h *host) archive(name string, image v1.Image) (ref string) {
	h.t.Helper()
	file := h.path(name + ".tar")
	imagetest.WriteArchive(h.t, file, name+":latest", image)
	return "docker-archive:" + file
}

// container starts a job of one member and waits until it runs.
func (h *host) container(name, image string, flags []string, command ...string) (*program, api.Alloc) {
	h.t.Helper()
	args := slices.Concat([]string{"run", "--name", name, "--image", image, "--cpu", "0.5", "--memory", "64MiB"}, flags, []string{"--"}, command)
	run := h.muster(args...)
	h.eventually(name+" runs", func() bool {
		if run.ended() {
			h.t.Fatalf("%s has ended\nstderr: %s", run, run.stderr)
		}
		j, err := h.client().Job(h.t.Context(), key(name))
		return err == nil && j.Counts.Running == 1
	})
	all := h.allocs(name)
	return run, all[len(all)-1]
}

// inside runs a command in a running container and returns what it printed.
func (h *host) inside(a api.Alloc, command ...string) string {
	h.t.Helper()
	got, err := h.tryInside(a, command...)
	if err != nil {
		h.t.Fatalf("exec %q: %v", command, err)
	}
	return got
}

func (h *host) tryInside(a api.Alloc, command ...string) (string, error) {
	got, err := h.client().RunExec(h.t.Context(), muster.AllocID(a.ID), api.ExecRequest{Command: command})
	if err != nil {
		return "", err
	}
	if got.ExitCode != 0 {
		err = fmt.Errorf("exit code %d: %s", got.ExitCode, got.Stderr)
	}
	return got.Stdout, err
}

// open makes the file that the command of a sandbox waits for. The command may end at once, and the execution with it before
// that was told: that the gate is open shows by what the command does next.
func (h *host) open(a api.Alloc, gate string) {
	h.t.Helper()
	_, _ = h.tryInside(a, "touch", gate)
}

// detach starts a detached execution.
func (h *host) detach(a api.Alloc, id, script string) {
	h.t.Helper()
	must(h.client().StartExec(h.t.Context(), muster.AllocID(a.ID), api.ExecRequest{ID: id, Command: []string{"sh", "-c", script}}))(h.t)
}

// attach reads a detached execution to its end, from an offset of stdout on.
func (h *host) attach(a api.Alloc, id string, from int64) (string, *api.ExecEnd) {
	h.t.Helper()
	e, err := h.client().Attach(h.t.Context(), muster.AllocID(a.ID), api.ExecAttach{Attach: id, Stdout: from, Stderr: -1})
	if err != nil {
		h.t.Fatalf("attach %s at %d: %v", id, from, err)
	}
	defer func() { _ = e.Close() }()
	var out bytes.Buffer
	end, err := e.Wait(&out, io.Discard)
	if err != nil {
		h.t.Fatalf("attach %s at %d, after %d bytes: %v", id, from, out.Len(), err)
	}
	return out.String(), end
}

// initOf is the init of an allocation's sandbox.
func (h *host) initOf(a api.Alloc) proc {
	h.t.Helper()
	dirs, _ := filepath.Glob(filepath.Join(h.instances(), "i-*", "sandboxes", a.ID))
	if len(dirs) != 1 {
		h.t.Fatalf("allocation %s has %d sandboxes", a.ID, len(dirs))
	}
	members := must(initbox.Members(dirs[0]))(h.t)
	if len(members) < 2 || members[0].Role != initbox.RoleInit {
		h.t.Fatalf("allocation %s: %+v", a.ID, members)
	}
	p, ok := look(members[0].Pid)
	if !ok {
		h.t.Fatalf("allocation %s: its init is gone", a.ID)
	}
	return p
}

// failed fails the test unless an allocation failed for this reason, and returns its message.
func failed(t *testing.T, a api.Alloc, class muster.FailureClass, reason muster.Reason) string {
	t.Helper()
	if a.Failure == nil || a.Failure.Class != string(class) || a.Failure.Reason != string(reason) {
		t.Errorf("attempt %d: %s %+v, want %s %s", a.Attempt, a.Outcome, a.Failure, class, reason)
		return ""
	}
	return a.Failure.Message
}

// nothingLeft waits until every instance is given back, and fails the test if anything of
// them is left on this machine: files and processes (see idle), mounts, cgroups, loop devices, interfaces, rules.
func (h *host) nothingLeft() {
	h.t.Helper()
	h.idle()
	var ids []string
	for _, n := range h.nodes() {
		if n.Instance != "" {
			ids = append(ids, n.Instance)
		}
	}
	if len(ids) == 0 {
		h.t.Fatal("there was no instance")
	}
	for _, line := range h.traces(ids) {
		h.t.Errorf("left: %s", line)
	}
}

// traces are what is on this machine outside of the instances' directories.
func (h *host) traces(ids []string) (found []string) {
	h.t.Helper()
	add := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	mounts := readFile(h.t, "/proc/self/mountinfo")
	for line := range strings.Lines(mounts) {
		if strings.Contains(line, h.dir+"/") && !strings.Contains(line, " "+h.data+" ") {
			add("mount: %s", strings.TrimSpace(line))
		}
	}
	for _, root := range cgroupRoots(mounts) {
		for _, id := range ids {
			if at := filepath.Join(root, "muster", id); exists(at) {
				add("cgroup %s", at)
			}
		}
	}
	loops, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, l := range loops {
		if b, err := os.ReadFile(l); err == nil && strings.HasPrefix(string(b), h.dir+"/") {
			add("loop device %s of %s", l, strings.TrimSpace(string(b)))
		}
	}
	names := map[string]string{}
	for _, id := range ids {
		names[network.Name(filepath.Join(h.instances(), id))] = id
	}
	for _, link := range must(net.Interfaces())(h.t) {
		if name, _, ok := strings.Cut(strings.TrimPrefix(link.Name, "mu"), "-"); ok && names[name] != "" {
			add("interface %s of %s", link.Name, names[name])
		}
	}
	conn := must(nftables.New())(h.t)
	for _, table := range must(conn.ListTables())(h.t) {
		if id := names[strings.TrimPrefix(table.Name, "muster-")]; id != "" {
			add("table %s of %s", table.Name, id)
		}
	}
	for _, p := range inCgroups(ids) {
		add("process %d: %s", p.pid, p.command())
	}
	return found
}

// cgroupRoots are where hierarchies of cgroups are mounted.
func cgroupRoots(mountinfo string) (roots []string) {
	for line := range strings.Lines(mountinfo) {
		before, after, _ := strings.Cut(line, " - ")
		if f := strings.Fields(before); strings.HasPrefix(after, "cgroup") && len(f) > 4 {
			roots = append(roots, f[4])
		}
	}
	return roots
}

// inCgroups are the processes of instances' sandboxes.
func inCgroups(ids []string) (all []proc) {
	groups, _ := filepath.Glob("/proc/[0-9]*/cgroup")
	for _, g := range groups {
		b, err := os.ReadFile(g)
		if err != nil || !slices.ContainsFunc(ids, func(id string) bool { return strings.Contains(string(b), "/muster/"+id) }) {
			continue
		}
		pid := 0
		_, _ = fmt.Sscanf(g, "/proc/%d/", &pid)
		if p, ok := look(pid); ok {
			all = append(all, p)
		}
	}
	return all
}

// problem is the code of what the API answered.
func problem(err error) string {
	var p *api.Problem
	if errors.As(err, &p) {
		return p.Code
	}
	return fmt.Sprintf("no problem: %v", err)
}

// plain lets the server's nodes pull from registries of this machine, which speak plain HTTP.
func (h *host) plain(registries ...*imagetest.Registry) {
	for _, r := range registries {
		h.config.Registries = append(h.config.Registries, api.RegistrySpec{Host: r.Host, Insecure: true})
	}
}
