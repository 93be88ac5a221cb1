package userns

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"time"
)

// rangeSize is how many ids beside root's a namespace has at most: as many as images use.
const rangeSize = 65536

// mapTime bounds the programs that write the maps.
const mapTime = 10 * time.Second

// IDs are the users and groups that a namespace has.
type IDs struct {
	// Count is how many there are, from 0 on. 1: only root, who is the user.
	Count int `json:"count"`
	// Why says why there is only one.
	Why string `json:"why,omitempty"`
}

// span is a range of ids that the administrator gave to a user.
type span struct{ first, count int }

// subordinate finds the range of a user in the text of /etc/subuid or /etc/subgid, whose lines are
// name:first:count. The largest counts.
func subordinate(text, name, uid string) (best span) {
	for line := range strings.Lines(text) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) != 3 || f[0] != name && f[0] != uid {
			continue
		}
		first, err1 := strconv.Atoi(f[1])
		count, err2 := strconv.Atoi(f[2])
		if err1 == nil && err2 == nil && first > 0 && count > best.count {
			best = span{first, count}
		}
	}
	return best
}

// subordinates are the ranges of this user, of uids and of gids.
func subordinates() (uids, gids span, err error) {
	uid := strconv.Itoa(os.Getuid())
	u, err := user.LookupId(uid)
	if err != nil {
		return span{}, span{}, fmt.Errorf("the user %s has no entry in /etc/passwd, which newuidmap needs; run Muster as a user that has one, for example made with `useradd --create-home NAME`", uid)
	}
	for _, program := range []string{"newuidmap", "newgidmap"} {
		if _, err := exec.LookPath(program); err != nil {
			return span{}, span{}, fmt.Errorf("%s is not installed; install it, for example with `apt-get install uidmap`", program)
		}
	}
	for _, f := range []struct {
		path string
		to   *span
	}{{"/etc/subuid", &uids}, {"/etc/subgid", &gids}} {
		b, err := os.ReadFile(f.path)
		if err != nil {
			return span{}, span{}, err
		}
		if *f.to = subordinate(string(b), u.Username, uid); f.to.count == 0 {
			return span{}, span{}, fmt.Errorf("%s has no range for the user %s; root adds one with `usermod --add-subuids 100000-165535 --add-subgids 100000-165535 %s`", f.path, u.Username, u.Username)
		}
	}
	return uids, gids, nil
}

// Ranged says why a namespace of this user has no ids but the user's own; nil: it has a range.
func Ranged() error {
	_, _, err := subordinates()
	return err
}

// errMapped says that a map was written in part: the namespace is of no use.
var errMapped = errors.New("the maps of ids could not be written")

// mapIDs writes the maps of the namespace that a new process is in.
func mapIDs(ctx context.Context, pid int, single bool) (IDs, error) {
	why := ""
	if !single {
		uids, gids, err := subordinates()
		if err == nil {
			n := min(uids.count, gids.count, rangeSize)
			if err := runMap(ctx, "newuidmap", pid, os.Getuid(), uids.first, n); err != nil {
				return IDs{}, fmt.Errorf("%w: %w", errMapped, err)
			}
			if err := runMap(ctx, "newgidmap", pid, os.Getgid(), gids.first, n); err != nil {
				return IDs{}, fmt.Errorf("%w: %w", errMapped, err)
			}
			return IDs{Count: 1 + n}, nil
		}
		why = err.Error()
	}
	// An ordinary user may map itself, once it has given up that groups can be dropped there.
	base := "/proc/" + strconv.Itoa(pid) + "/"
	for _, f := range []struct{ name, text string }{
		{"setgroups", "deny"}, {"uid_map", fmt.Sprintf("0 %d 1", os.Getuid())}, {"gid_map", fmt.Sprintf("0 %d 1", os.Getgid())},
	} {
		if err := os.WriteFile(base+f.name, []byte(f.text), 0); err != nil {
			return IDs{}, err
		}
	}
	return IDs{Count: 1, Why: why}, nil
}

// runMap runs newuidmap or newgidmap: 0 inside is the user, and what follows is the range.
func runMap(ctx context.Context, program string, pid, self, first, count int) error {
	ctx, cancel := context.WithTimeout(ctx, mapTime)
	defer cancel()
	args := []string{strconv.Itoa(pid), "0", strconv.Itoa(self), "1", "1", strconv.Itoa(first), strconv.Itoa(count)}
	out, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", program, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// create starts a process in new namespaces and writes the maps of ids. start is called again where
// the programs that give a range fail: then only the user is mapped.
func create(ctx context.Context, start func() (*exec.Cmd, error)) (*exec.Cmd, IDs, error) {
	cmd, err := start()
	if err != nil {
		return nil, IDs{}, err
	}
	ids, err := mapIDs(ctx, cmd.Process.Pid, false)
	if errors.Is(err, errMapped) {
		why := err.Error()
		end(cmd)
		if cmd, err = start(); err != nil {
			return nil, IDs{}, err
		}
		ids, err = mapIDs(ctx, cmd.Process.Pid, true)
		ids.Why = why
	}
	if err != nil {
		end(cmd)
		return nil, IDs{}, err
	}
	return cmd, ids, nil
}

// end ends a process that nobody needs.
func end(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}
