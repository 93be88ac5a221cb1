package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster/internal/wait"
)

// ErrNoFreezer says that there is nothing here that could freeze a sandbox.
var ErrNoFreezer = errors.New("this node has no freezer among its cgroups")

// Files by which a cgroup is frozen, on v1 and v2, and the words that they take.
const (
	freezerState  = "freezer.state"
	freezerFile   = "cgroup.freeze"
	freezerEvents = "cgroup.events"
)

// beginAgain is after how many looks a freeze on v1 that does not come about is begun again: after some 40 ms.
const beginAgain = 12

// Freezer is the directory that a sandbox's freezer has, or would have: for its record, beside Dirs. On v1 it is
// made when the sandbox is frozen for the first time, so that those that never are pay nothing for it. Empty: one of Dirs has it, or there is none.
func (g *Groups) Freezer(name string) string {
	if g == nil || g.freezer == "" {
		return ""
	}
	return filepath.Join(g.freezer, name)
}

// Freezes reports whether sandboxes can be frozen.
func (g *Groups) Freezes() bool {
	return g != nil && (g.freezer != "" || g.v2 && exists(filepath.Join(g.parents[0], freezerFile)))
}

// Freezer is what freezes one sandbox.
type Freezer struct {
	// dir is its cgroup, from which all that is in dirs is moved there if it is another.
	dir  string
	dirs []string
	v2   bool
}

// FindFreezer is the freezer of a sandbox with these directories, which its record has.
func FindFreezer(dirs []string) (*Freezer, error) {
	if len(dirs) == 0 {
		return nil, ErrNoFreezer
	}
	if exists(filepath.Join(dirs[0], freezerFile)) {
		return &Freezer{dir: dirs[0], dirs: dirs[:1], v2: true}, nil
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	for _, t := range parseTrees(string(mounts)) {
		if t.v2 || !slices.Contains(t.controllers, "freezer") {
			continue
		}
		for _, dir := range dirs {
			if strings.HasPrefix(dir, t.mount+"/") {
				return &Freezer{dir: dir, dirs: dirs}, nil
			}
		}
	}
	return nil, ErrNoFreezer
}

// Freeze stops every process and returns when all stand. On an error they go on.
func (f *Freezer) Freeze(ctx context.Context) error {
	if f.v2 {
		return f.freeze(ctx, freezerEvents, "frozen 1")
	}
	if err := os.MkdirAll(f.dir, 0o755); err != nil {
		return err
	}
	return f.freeze(ctx, freezerState, "FROZEN")
}

// begin tells the kernel to freeze what is in the cgroup, and on v1 moves everything there.
func (f *Freezer) begin(ctx context.Context) error {
	if err := writeFile(filepath.Join(f.dir, pick(f.v2, freezerFile, freezerState)), pick(f.v2, "1", "FROZEN")); err != nil || f.v2 {
		return err
	}
	return f.gather(ctx)
}

// gather moves everything into the freezer's cgroup, which freezes already: what was moved forks no more, so that each look
// finds fewer. Children begin where their parents are. The kernel moves no process that is exiting, and does not say so: it
// is waited for until it is gone, which on a busy machine takes a while.
func (f *Freezer) gather(ctx context.Context) error {
	others := slices.DeleteFunc(slices.Clone(f.dirs), func(d string) bool { return d == f.dir })
	for pause := 50 * time.Microsecond; ; pause = min(2*pause, 5*time.Millisecond) {
		// Read before and after: a process that ends while the lists are read is in one of the two. With only the second list, a
		// busy machine finds an ended process in every round, and gives up.
		before, _ := Pids([]string{f.dir})
		all, ok := Pids(others)
		if !ok {
			return fmt.Errorf("freeze %s: it has no cgroup any more", f.dir)
		}
		after, _ := Pids([]string{f.dir})
		moved := false
		for _, pid := range all {
			_, was := slices.BinarySearch(before, pid)
			if _, is := slices.BinarySearch(after, pid); was || is {
				continue
			}
			moved = true
			// One that is gone needs no move.
			if err := writeFile(filepath.Join(f.dir, "cgroup.procs"), fmt.Sprint(pid)); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
		}
		if !moved {
			return nil
		}
		if !wait.For(ctx, pause) {
			return fmt.Errorf("freeze %s: not all of its processes could be moved there: %w", f.dir, context.Cause(ctx))
		}
	}
}

func (f *Freezer) freeze(ctx context.Context, look, want string) error {
	if err := f.begin(ctx); err != nil {
		return errors.Join(err, f.Thaw())
	}
	// There is no event for it on v1.
	pause := 50 * time.Microsecond
	for tries := 1; ; tries++ {
		text, ok := ReadSmall(filepath.Join(f.dir, look))
		if !ok {
			return fmt.Errorf("freeze %s: its cgroup is gone", f.dir)
		}
		for line := range strings.Lines(text) {
			if strings.TrimSpace(line) == want {
				return nil
			}
		}
		if !wait.For(ctx, pause) {
			return errors.Join(fmt.Errorf("freeze %s: not all of it stands: %w", f.dir, context.Cause(ctx)), f.Thaw())
		}
		pause = min(2*pause, 5*time.Millisecond)
		// On v1 a process that was just being forked may be left out, and waited for in vain: the kernel
		// stays at FREEZING for ever. Nothing helps but to begin again.
		if !f.v2 && tries%beginAgain == 0 {
			if err := f.Thaw(); err != nil {
				return err
			}
			if err := f.begin(ctx); err != nil {
				return errors.Join(err, f.Thaw())
			}
		}
	}
}

// Thaw lets everything go on.
func (f *Freezer) Thaw() error {
	err := writeFile(filepath.Join(f.dir, pick(f.v2, freezerFile, freezerState)), pick(f.v2, "0", "THAWED"))
	if errors.Is(err, unix.ENOENT) {
		return nil // never frozen, or gone
	}
	return err
}

// Frozen reports whether it was told to stand, by whichever agent.
func (f *Freezer) Frozen() bool {
	text, _ := ReadSmall(filepath.Join(f.dir, pick(f.v2, freezerFile, freezerState)))
	word := strings.TrimSpace(text)
	return word == "1" || word == "FROZEN" || word == "FREEZING"
}

// Thaw lets whatever is in these directories go on, as far as it was frozen: what is frozen on v1 does not die.
func Thaw(dirs []string) {
	for _, dir := range dirs {
		for file, word := range map[string]string{freezerState: "THAWED", freezerFile: "0"} {
			_ = writeFile(filepath.Join(dir, file), word)
		}
	}
}
