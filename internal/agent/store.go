package agent

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// The agent's own names in the directory of one sandbox. A directory without a journal is rubbish.
const (
	journalName = "alloc.jsonl"
	workName    = "work"
	tmpName     = "tmp"
	outputDir   = "outputs"
)

// step is one line of an allocation's journal: what is true from then on. One
// file for all of them, because making and deleting files is most of what a
// command that does nothing costs.
type step struct {
	// Spec: the agent has it; a restarted one knows it too.
	Spec *wire.AllocSpec `json:"spec,omitempty"`
	// Begun: the runtime is about to be asked. It is asked again only if it says that nothing was ever started.
	Begun *begunMark `json:"begun,omitempty"`
	// Ran: the runtime has started it, at that time.
	Ran muster.Time `json:"ran,omitempty"`
	// Ready: it is, since then.
	Ready muster.Time `json:"ready,omitempty"`
	// End: it has ended so.
	End *wire.AllocReport `json:"end,omitempty"`

	// begins is how often it was marked as begun.
	begins int
}

type begunMark struct {
	Runtime string      `json:"runtime"`
	At      muster.Time `json:"at"`
	// Image is the digest of the image that it is started from.
	Image string `json:"image,omitempty"`
}

// store makes the directory and its journal.
func (al *alloc) store() error {
	if err := os.Mkdir(al.dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return al.note(step{Spec: al.spec})
}

// note appends to the journal: one write, which a killed agent has done or has not.
func (al *alloc) note(s step) error {
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(al.dir, journalName), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}

// readJournal reads all steps as one. Lines that are torn or of a later
// version's making are skipped; whole says that there were none. fs.ErrNotExist if there is no journal.
func readJournal(dir string) (all step, whole bool, err error) {
	b, err := os.ReadFile(filepath.Join(dir, journalName))
	if err != nil {
		return step{}, false, err
	}
	whole = true
	for line := range bytes.Lines(b) {
		var s step
		if json.Unmarshal(line, &s) != nil {
			whole = false
			continue
		}
		if s.Spec != nil {
			all.Spec = s.Spec
		}
		if s.Begun != nil {
			all.Begun = s.Begun
			all.begins++
		}
		if s.Ran != 0 {
			all.Ran = s.Ran
		}
		if s.Ready != 0 {
			all.Ready = s.Ready
		}
		if s.End != nil {
			all.End = s.End
		}
	}
	return all, whole, nil
}

// load finds the allocations of earlier agents in this directory and goes on with each.
func (a *Agent) load(ctx context.Context) error {
	dir := filepath.Join(a.cfg.Dir, sandboxesName)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	spread(dir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var living []*alloc
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		al := a.found(muster.AllocID(e.Name()))
		if al == nil {
			a.trash.add(trashItem{id: muster.AllocID(e.Name()), dir: filepath.Join(dir, e.Name())})
			continue
		}
		a.allocs[al.id] = al
		if !al.ended {
			living = append(living, al)
		}
	}
	if err := a.restoreNetworks(ctx); err != nil {
		return err
	}
	for _, al := range living {
		a.spawn(func() { a.live(ctx, al) })
	}
	return nil
}

// found reads one sandbox directory; nil if it is rubbish.
func (a *Agent) found(id muster.AllocID) *alloc {
	al := a.newAlloc(id, nil)
	was, whole, err := readJournal(al.dir)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			a.log.Error("journal of an allocation", "alloc", id, "error", err)
		}
		return nil
	}
	al.stored, al.found, al.ready = true, true, was.Ready
	switch {
	case was.End != nil:
		al.report, al.ended = was.End, true
		close(al.opened)
		close(al.done)
	case was.Begun != nil:
		// What ran may run, and is reported so until the runtime has been asked. What never got so far is not:
		// a server that was told that it runs would hand out a runner that is none.
		al.report = &wire.AllocReport{ID: id, Status: muster.AllocStarting}
		if ran := max(was.Ran, was.Ready); ran != 0 {
			al.report = &wire.AllocReport{ID: id, Status: muster.AllocRunning, Started: cmp.Or(was.Ran, was.Begun.At), Ready: was.Ready}
		}
	case !whole:
		// Torn by a power cut. It may have begun, so it must not begin again.
		al.report = &wire.AllocReport{ID: id, Status: muster.AllocStarting}
	case was.Spec != nil:
		al.spec, al.exclusive = was.Spec, was.Spec.Exclusive
		al.report = &wire.AllocReport{ID: id, Status: muster.AllocStarting}
		return al
	default:
		return nil
	}
	if !al.ended {
		al.spec = was.Spec
		al.exclusive = was.Spec != nil && was.Spec.Exclusive
	}
	if al.ended && was.Begun == nil {
		return al
	}
	al.begun, al.begins = true, was.begins
	if !whole {
		al.begins = maxBegins // what the torn line said may be that it ran
	}
	if !al.ended && was.Begun != nil && was.Begun.Image != "" && a.images != nil {
		image, err := a.images.Hold(was.Begun.Image)
		if err != nil {
			// Its layers are in use by its mounts whether we count that or not.
			a.log.Warn("image of a sandbox of an earlier agent", "alloc", id, "image", was.Begun.Image, "error", err)
			image = &Image{Digest: was.Begun.Image}
		}
		al.image = image
	}
	for _, rt := range a.cfg.Runtimes {
		if al.runtime == nil || was.Begun != nil && rt.Name() == was.Begun.Runtime {
			al.runtime = rt
		}
	}
	return al
}

// Unended reports whether the sandbox of a directory was begun and no agent
// has written down its end.
func Unended(dir string) (bool, error) {
	was, _, err := readJournal(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return was.Begun != nil && was.End == nil, err
}

// emptyDir deletes what is left of an allocation. The journal goes first: without
// it a restarted agent takes the rest for rubbish, and not for something to start.
func (a *Agent) emptyDir(ctx context.Context, item trashItem) error {
	if item.calls != nil {
		select {
		case item.calls <- struct{}{}:
			defer func() { <-item.calls }()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err := os.Remove(filepath.Join(item.dir, journalName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	runtimes := a.runtimes
	if item.runtime != nil {
		runtimes = []Runtime{item.runtime}
	} else if item.neverBegun {
		runtimes = nil
	}
	for _, rt := range runtimes {
		rctx, cancel := context.WithTimeout(ctx, attachTimeout)
		err := rt.Remove(rctx, item.dir)
		cancel()
		if err != nil {
			return fmt.Errorf("runtime %s: %w", rt.Name(), err)
		}
	}
	// Most commands leave these empty; then the tree below has one level only, and is not searched for more.
	for _, name := range []string{workName, tmpName} {
		_ = unix.Rmdir(filepath.Join(item.dir, name))
	}
	return RemoveTree(item.dir)
}

// RemoveTree deletes a directory tree in which commands may have taken away
// their own permissions, or in which something is still being made for a moment.
func RemoveTree(dir string) error {
	var err error
	for range 5 {
		err = os.RemoveAll(dir)
		switch {
		case errors.Is(err, fs.ErrPermission):
			_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
				// WalkDir calls first for the directory and only then reads it, so that it can be opened up in time.
				if err == nil && d.IsDir() {
					_ = os.Chmod(path, 0o700)
				}
				return nil
			})
		case !errors.Is(err, syscall.ENOTEMPTY):
			return err
		}
	}
	return err
}

// failureOf turns an error of this machine into a failure: what the disk or
// the process table refuses is the node's fault, anything else the user's.
func failureOf(reason muster.Reason, what string, err error) *muster.Failure {
	for _, e := range []error{
		syscall.ENOSPC, syscall.EDQUOT, syscall.EIO, syscall.EROFS, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ESTALE,
	} {
		if errors.Is(err, e) {
			return failure(muster.FailureNode, muster.ReasonNodeFault, "%s: %v", what, err)
		}
	}
	return failure(muster.FailureUser, reason, "%s: %v", what, err)
}

// validID reports whether an id can be the name of a directory.
func validID(id muster.AllocID) bool {
	s := string(id)
	if s == "" || len(s) > 128 || s[0] == '.' {
		return false
	}
	return strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") == ""
}

func freeDisk(dir string) int64 {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0
	}
	return int64(st.Bavail) * st.Bsize
}

// SandboxDirs are the directories below an agent's directory in which a sandbox
// may be, those of its runtimes' probes included: for those who take it apart or look whether it
// lives while no agent runs there.
func SandboxDirs(dir string) ([]string, error) {
	var list []string
	for _, name := range []string{sandboxesName, TempName} {
		entries, err := os.ReadDir(filepath.Join(dir, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			if e.IsDir() {
				list = append(list, filepath.Join(dir, name, e.Name()))
			}
		}
	}
	return list, nil
}

// emptyTemp deletes what agents that were killed have left in their temporary
// directory: a runtime's probe may be a sandbox that still runs.
func (a *Agent) emptyTemp(ctx context.Context) error {
	dir := filepath.Join(a.cfg.Dir, TempName)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		for _, rt := range a.cfg.Runtimes {
			if err := rt.Remove(ctx, path); err != nil {
				a.log.Warn("left by an earlier agent", "path", path, "error", err)
			}
		}
		if err := RemoveTree(path); err != nil {
			return err
		}
	}
	return nil
}
