package initbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster/internal/agent/cgroup"
	"github.com/musterhq/muster/internal/agent/userns"
	"github.com/musterhq/muster/internal/wait"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// killTime bounds the end of what will not end.
const killTime = 10 * time.Second

// Role is what a process is in its sandbox.
type Role string

// Roles.
const (
	RoleInit       Role = "init"
	RoleCommand    Role = "command"
	RoleDescendant Role = "descendant"
)

// Member is one living process of a sandbox.
type Member struct {
	initwire.Process
	Role Role
}

// Members lists every living process of the sandbox of dir, init first. It needs
// nothing but the directory: agent and init may be dead. A dir without a sandbox has none.
//
// With a cgroup the list is whole. Without one it is what descends from a living
// init, which takes in orphans; if init is dead, what is left in the command's
// session, what carries the allocation's mark in its environment, and what descends from either.
func Members(dir string) ([]Member, error) {
	record, err := living(dir)
	if record == nil {
		return nil, err
	}
	return members(record), nil
}

// living is the record of the sandbox of dir; nil where there is none, and where it is of an earlier boot of the machine.
func living(dir string) (*initwire.Record, error) {
	record, err := Read(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("members of the sandbox: %w", err)
	}
	boot, err := BootID()
	if err != nil {
		return nil, err
	}
	if record.Sandbox == nil || record.Sandbox.Boot != boot {
		return nil, nil
	}
	return record, nil
}

func members(record *initwire.Record) []Member {
	init := record.Init
	var command *initwire.Process
	if record.Command != nil {
		command = &record.Command.Command
	}
	alive := init != nil && Living(*init)
	pids, whole := cgroup.Pids(record.Sandbox.Cgroups)
	switch {
	case whole:
	case alive:
		pids = descendants(init.Pid)
	case init != nil:
		pids = strays(record.Sandbox.Alloc, command)
	}
	var all []Member
	if alive {
		all = append(all, Member{*init, RoleInit})
	}
	slices.Sort(pids)
	for _, pid := range slices.Compact(pids) {
		st, ok := ReadStat(pid)
		if !ok || st.Dead() || (alive && pid == init.Pid) || pid == os.Getpid() {
			continue
		}
		role := RoleDescendant
		if command != nil && st.Start == command.Start && (pid == command.Pid || walled(record.Sandbox) && innerPid(pid) == command.Pid) {
			role = RoleCommand
		}
		all = append(all, Member{initwire.Process{Pid: pid, Start: st.Start}, role})
	}
	return all
}

// KillAll ends every process of the sandbox of dir with KILL and returns when
// none lives, or after a bounded time with an error that names those that do. Neither the
// agent nor init need be alive. Safe to call at any time, and twice.
func KillAll(ctx context.Context, dir string) error {
	return killAll(ctx, dir, func() (*initwire.Record, error) { return living(dir) })
}

// killAll is KillAll of the sandbox whose record find returns, anew each time; nil: there is none. name is for errors.
func killAll(ctx context.Context, name string, find func() (*initwire.Record, error)) error {
	ctx, cancel := context.WithTimeout(ctx, killTime)
	defer cancel()
	pause := 500 * time.Microsecond
	var killed []Member
	for {
		record, err := find()
		if record == nil {
			return err
		}
		// A process leaves its cgroup before it is dead. The init of a pid namespace still waits for all
		// others in it then.
		all := members(record)
		all = append(all, slices.DeleteFunc(killed, func(k Member) bool {
			return !Living(k.Process) || slices.ContainsFunc(all, func(m Member) bool { return m.Process == k.Process })
		})...)
		killed = all
		if len(all) == 0 {
			return nil
		}
		cgroup.Thaw(record.Sandbox.Cgroups)
		_, whole := cgroup.Pids(record.Sandbox.Cgroups)
		var failed error
		for _, m := range all {
			sig := unix.SIGKILL
			if m.Role == RoleInit && len(all) > 1 && !whole {
				// Init goes first, so that it does not write down our KILL as the command's
				// end. But without a cgroup it is also what makes the list whole: it stands still until the others are gone.
				sig = unix.SIGSTOP
			}
			if err := signal(m.Process, sig); err != nil {
				failed = fmt.Errorf("end process %d of %s: %w", m.Pid, name, err)
			}
		}
		if !wait.For(ctx, pause) {
			return errors.Join(failed, fmt.Errorf("processes of %s do not end: %v", name, pidsOf(all)))
		}
		pause = min(pause*2, 50*time.Millisecond)
	}
}

func pidsOf(all []Member) (pids []int) {
	for _, m := range all {
		pids = append(pids, m.Pid)
	}
	return pids
}

// Destroy ends whatever of the sandbox of dir runs and deletes its cgroup and
// socket. The files stay, and with them the result. Needs no agent; safe to call twice.
func Destroy(ctx context.Context, dir string) error {
	record, err := Read(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove the sandbox: %w", err)
	}
	// Init writes a result when all is over, then it ends: nearly always there is nothing to look for.
	over := record.Result != nil && !record.Result.Leftovers && (record.Init == nil || !Living(*record.Init)) &&
		record.Sandbox != nil && !walled(record.Sandbox)
	if !over {
		if err := KillAll(ctx, dir); err != nil {
			return err
		}
	}
	if record.Init != nil {
		// Ours to reap if this process started it and no longer watches it.
		if st, ok := ReadStat(record.Init.Pid); ok && st.Start == record.Init.Start && st.Dead() {
			_, _ = unix.Wait4(record.Init.Pid, nil, unix.WNOHANG, nil)
		}
	}
	var errs []error
	if record.Sandbox != nil {
		errs = append(errs, cgroup.RemoveAll(record.Sandbox.Cgroups))
	}
	// Where there never was a box, nothing is there to be deleted.
	errs = append(errs, userns.RemoveAll(filepath.Join(dir, Box)), removeFile(filepath.Join(dir, initwire.Socket)))
	return errors.Join(errs...)
}
