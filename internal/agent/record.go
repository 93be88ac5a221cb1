package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/musterhq/muster"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// Names in an agent's directory. Those of a sandbox's own directory are in store.go.
const (
	lockName      = "agent.lock"
	fenceName     = "fence.json"
	fenceTipName  = "fence-tip.json"
	sandboxesName = "sandboxes"
	inputsName    = "inputs"
)

// Names in an agent's directory of what it is given.
const (
	// ImagesName is that of the cache of images, NetworksName of what is known of networks.
	ImagesName   = "images"
	NetworksName = "networks"
)

// TempName is the name of the temporary directory in an agent's directory.
// Whoever makes the agent's process sets TMPDIR to it: what a killed agent leaves there, the next one deletes.
const TempName = "tmp"

// RecordName is the name of the record in an agent's directory. The file is as
// old as the agent's process.
const RecordName = "agent.json"

// Record is what a running agent leaves in its directory, so that others can
// tell whether it lives without asking it.
type Record struct {
	Pid int `json:"pid"`
	// Start is the process's start in clock ticks since the machine's boot: with
	// Pid and Kernel it names a process for ever.
	Start uint64 `json:"start"`
	// Kernel is the boot id of the machine.
	Kernel  string        `json:"kernel"`
	Node    muster.NodeID `json:"node"`
	Version string        `json:"version"`
	// Boot is the agent's own, as in its Hello.
	Boot string `json:"boot"`
}

// ReadRecord reads the record of the agent that last ran in dir. The error is
// fs.ErrNotExist if none ever did.
func ReadRecord(dir string) (Record, error) {
	b, err := os.ReadFile(filepath.Join(dir, RecordName))
	if err != nil {
		return Record{}, err
	}
	var r Record
	if err := json.Unmarshal(b, &r); err != nil {
		return Record{}, fmt.Errorf("%s: %w", filepath.Join(dir, RecordName), err)
	}
	return r, nil
}

// Alive reports whether the recorded process still runs.
func (r Record) Alive() bool {
	if r.Pid <= 0 || r.Kernel != KernelBoot() {
		return false
	}
	start, ok := processStart(r.Pid)
	return ok && start == r.Start
}

// Kill ends the recorded process if it still runs. Its sandboxes go on.
func (r Record) Kill() error {
	if r.Pid <= 0 {
		return nil
	}
	p, err := os.FindProcess(r.Pid)
	if err != nil {
		return err
	}
	defer func() { _ = p.Release() }()
	// The handle is of whoever has the pid now; only after this check is it known
	// to be the recorded process, and the handle cannot change to another one.
	if !r.Alive() {
		return nil
	}
	if err := p.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("agent process %d: %w", r.Pid, err)
	}
	return nil
}

// KernelBoot is the machine's boot id; it changes with each boot.
func KernelBoot() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace(b))
}

// processStart is the start time of a process that runs, in ticks since boot.
// A zombie does not run.
func processStart(pid int) (uint64, bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, false
	}
	// The name in parentheses may itself contain anything; the last one ends it.
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return 0, false
	}
	fields := strings.Fields(string(b[i+1:]))
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return 0, false
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	return start, err == nil
}

// Lock is the right to be the one agent of a directory, or to take it apart.
type Lock struct{ f *os.File }

// Release gives the lock up. Safe to call twice.
func (l *Lock) Release() {
	if l != nil && l.f != nil {
		_ = l.f.Close()
		l.f = nil
	}
}

// errLocked: another agent has the directory.
var errLocked = errors.New("another agent runs there")

// tryLock takes the lock of dir if it is free.
func tryLock(dir string) (*Lock, error) {
	path := filepath.Join(dir, lockName)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errLocked
		}
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	// Whoever took the directory apart held the lock of a file that is now
	// unlinked: that lock is of no directory.
	mine, err1 := f.Stat()
	there, err2 := os.Stat(path)
	if err1 != nil || err2 != nil || !os.SameFile(mine, there) {
		_ = f.Close()
		return nil, fmt.Errorf("%s: the directory was removed", dir)
	}
	return &Lock{f: f}, nil
}

// Times of taking over from another agent.
const (
	askFor    = 5 * time.Second
	killFor   = 5 * time.Second
	lockRetry = 3 * time.Millisecond
)

// Seize makes sure that no agent runs in dir, and that none starts before the
// lock is released. Sandboxes are not touched. With ask the agent there is asked to step down, and only
// killed if it does not.
func Seize(ctx context.Context, dir string, ask bool) (*Lock, error) {
	lock, err := tryLock(dir)
	if !errors.Is(err, errLocked) {
		return lock, err
	}
	if ask {
		askCtx, cancel := context.WithTimeout(ctx, askFor)
		defer cancel()
		c := wire.NewClient(Dialer(dir))
		defer c.Close()
		if err := c.StepDown(askCtx); err == nil {
			lock, err = waitLock(askCtx, dir, nil)
			if !errors.Is(err, errLocked) {
				return lock, err
			}
		}
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	killCtx, cancel := context.WithTimeout(ctx, killFor)
	defer cancel()
	lock, err = waitLock(killCtx, dir, func() error {
		// Read anew each time: an agent that has only just started has not written its record yet.
		r, err := ReadRecord(dir)
		if err != nil {
			return nil
		}
		return r.Kill()
	})
	if err != nil {
		return nil, fmt.Errorf("agent of %s: %w", dir, err)
	}
	return lock, nil
}

// waitLock tries for the lock until ctx ends, doing something before each try.
func waitLock(ctx context.Context, dir string, before func() error) (*Lock, error) {
	retry := time.NewTicker(lockRetry)
	defer retry.Stop()
	for {
		if before != nil {
			if err := before(); err != nil {
				return nil, err
			}
		}
		lock, err := tryLock(dir)
		if !errors.Is(err, errLocked) {
			return lock, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-retry.C:
		}
	}
}

// Dialer opens connections to the agent of a directory.
func Dialer(dir string) func(context.Context) (net.Conn, error) {
	path := filepath.Join(dir, wire.SocketName)
	return func(ctx context.Context) (net.Conn, error) { return wire.DialSocket(ctx, path) }
}
