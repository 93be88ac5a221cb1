package qemu

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/atomicfile"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/filelock"
)

// Names in a machine's directory.
const (
	recordName  = "instance.json"
	lockName    = "lock"
	pidName     = "pid"
	qmpName     = "qmp"
	diskName    = "disk.qcow2"
	seedName    = "seed"
	consoleName = "console.log"
)

// goneMark is how directories begin whose machine was destroyed, until they are deleted.
const goneMark = "gone-"

// machine is one as its record has it.
type machine struct {
	cloud.Instance
	// Capacity is what the machine may take of this host.
	Capacity muster.Resources `json:"capacity"`
	// Port on 127.0.0.1 leads to the machine's port 22; 0: QEMU was never started.
	Port int `json:"port,omitempty"`

	dir string
}

// write stores the record whole.
func (m *machine) write() error {
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(m.dir, recordName), append(b, '\n'))
}

// isID reports whether an id has the shape that driver.InstanceName gives. Only those become paths.
func isID(id muster.InstanceID) bool {
	h, ok := strings.CutPrefix(string(id), "m-")
	b, err := hex.DecodeString(h)
	return ok && err == nil && len(b) == 12 && h == strings.ToLower(h)
}

// read is the machine in a directory; fs.ErrNotExist if there is no record.
func read(dir string) (*machine, error) {
	b, err := os.ReadFile(filepath.Join(dir, recordName))
	if err != nil {
		return nil, err
	}
	m := &machine{dir: dir}
	if err := json.Unmarshal(b, m); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, recordName), err)
	}
	return m, nil
}

// mine is a machine of the owner that runs or is suspended; FaultNotFound if there is none.
func (p *Provider) mine(id muster.InstanceID) (*machine, error) {
	none := muster.Faultf(muster.FaultNotFound, "instance %s: not found", id)
	if !isID(id) {
		return nil, none
	}
	m, err := read(filepath.Join(p.cfg.Dir, string(id)))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, none
	case err != nil:
		return nil, &muster.Fault{Kind: muster.FaultTransient, Err: err}
	case m.Tags.Owner != p.cfg.Owner || !m.runs():
		return nil, none
	}
	return m, nil
}

// machines are those of the owner that run or are suspended.
func (p *Provider) machines() ([]*machine, error) {
	all, err := p.records()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(m *machine) bool { return !m.runs() }), nil
}

// records are the owner's machines, those that have ended included.
func (p *Provider) records() ([]*machine, error) {
	all, err := p.everyRecord()
	return slices.DeleteFunc(all, func(m *machine) bool { return m.Tags.Owner != p.cfg.Owner }), err
}

// everyRecord is the machines of all owners, those that have ended included.
func (p *Provider) everyRecord() ([]*machine, error) {
	entries, err := os.ReadDir(p.cfg.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, &muster.Fault{Kind: muster.FaultTransient, Message: "machines", Err: err}
	}
	var out []*machine
	for _, e := range entries {
		if !isID(muster.InstanceID(e.Name())) {
			continue
		}
		m, err := read(filepath.Join(p.cfg.Dir, e.Name()))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			// A create has only begun, or was cut off before it wrote whose machine it is.
		case err != nil:
			// Its owner is not known. An incomplete answer would be worse than none.
			return nil, &muster.Fault{Kind: muster.FaultTransient, Err: err}
		default:
			out = append(out, m)
		}
	}
	return out, nil
}

// pid is the process of the machine; 0 if none runs.
func (m *machine) pid() int { return pidOf(m.dir) }

// runs reports whether QEMU runs for it.
func (m *machine) runs() bool { return m.pid() != 0 }

// began reports whether QEMU may have run for it: the record gets the port just before that. QEMU
// deletes its pid file when it ends.
func (m *machine) began() bool { return m.Port != 0 }

// pidOf is the process of the machine in a directory; 0 if none runs. A process id may belong to
// another process by now, so the command line must name the directory.
func pidOf(dir string) int {
	b, err := os.ReadFile(filepath.Join(dir, pidName))
	if err != nil {
		return starting(dir)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	switch {
	case err != nil:
		return starting(dir) // it is being written
	case !isQEMUOf(dir, pid):
		return 0
	}
	return pid
}

// startingTime is how long QEMU takes at most until it has written its process id.
const startingTime = 2 * startTime

// starting finds a QEMU that has not written its process id yet. Its server was killed, or has given
// up waiting, while it started: no other trace of it exists. The record is written just before.
func starting(dir string) int {
	st, err := os.Stat(filepath.Join(dir, recordName))
	if err != nil || time.Since(st.ModTime()) > startingTime {
		return 0
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0
	}
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && isQEMUOf(dir, pid) {
			return pid
		}
	}
	return 0
}

// isQEMUOf reports whether a process is the QEMU of a directory.
func isQEMUOf(dir string, pid int) bool {
	if pid <= 1 {
		return false
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && slices.Contains(strings.Split(string(line), "\x00"), filepath.Join(dir, pidName))
}

// lock takes the lock of a machine's directory, which it makes. Of two calls for one machine, in this
// process or another, one waits here.
func lock(ctx context.Context, dir string) (unlock func(), err error) {
	for {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
		f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_CREATE|os.O_RDWR, 0o600)
		if errors.Is(err, fs.ErrNotExist) {
			continue // destroyed between the two
		}
		if err != nil {
			return nil, err
		}
		if !filelock.Take(ctx, f, 20*time.Millisecond) {
			_ = f.Close()
			return nil, &muster.Fault{Kind: muster.FaultTransient, Message: "another call works on the machine", Err: ctx.Err()}
		}
		// A destroy may have moved the directory away while this call waited.
		is, err := f.Stat()
		if err != nil {
			_ = f.Close()
			return nil, err
		}
		if now, err := os.Stat(filepath.Join(dir, lockName)); err == nil && os.SameFile(is, now) {
			return func() { _ = f.Close() }, nil
		}
		_ = f.Close()
	}
}

// List is cloud.Provider's. A machine whose QEMU has ended is gone: it powered itself off, or was killed.
func (p *Provider) List(context.Context, string) (cloud.Listing, error) {
	all, err := p.machines()
	if err != nil {
		return cloud.Listing{}, err
	}
	out := cloud.Listing{Complete: true}
	for _, m := range all {
		m.trimConsole()
		out.Instances = append(out.Instances, m.Instance)
	}
	return out, nil
}

// consoleLimit bounds the console's file. What fills it is the machine, not this host.
const consoleLimit = 4 << 20

// trimConsole empties a console's file that is too long. QEMU appends to it, so it goes on at its start.
func (m *machine) trimConsole() {
	path := filepath.Join(m.dir, consoleName)
	if st, err := os.Stat(path); err == nil && st.Size() > consoleLimit {
		_ = os.Truncate(path, 0) // or with the next list
	}
}

// SetTags is cloud.Provider's.
func (p *Provider) SetTags(ctx context.Context, id muster.InstanceID, tags cloud.Tags) error {
	m, err := p.mine(id)
	if err != nil {
		return err
	}
	unlock, err := lock(ctx, m.dir)
	if err != nil {
		return err
	}
	defer unlock()
	if m, err = p.mine(id); err != nil {
		return err
	}
	if tags.Owner != m.Tags.Owner || tags.Token != m.Tags.Token {
		return muster.Faultf(muster.FaultInvalid, "instance %s: its owner and its token cannot change", id)
	}
	m.Tags = tags
	if err := m.write(); err != nil {
		return &muster.Fault{Kind: muster.FaultTransient, Message: "instance " + string(id), Err: err}
	}
	return nil
}

// Leftovers is cloud.Sweeper's: directories of this owner whose QEMU does not run, and what a destroy
// that was cut off has left.
func (p *Provider) Leftovers(context.Context) ([]cloud.Leftover, error) {
	entries, err := os.ReadDir(p.cfg.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, &muster.Fault{Kind: muster.FaultTransient, Message: "machines", Err: err}
	}
	var out []cloud.Leftover
	for _, e := range entries {
		if st, err := e.Info(); err == nil && p.isLeft(e.Name()) {
			out = append(out, cloud.Leftover{Kind: "directory", ID: e.Name(), Created: muster.At(st.ModTime())})
		}
	}
	return out, nil
}

// isLeft reports whether a directory belongs to this owner and to no machine that runs.
func (p *Provider) isLeft(name string) bool {
	id := strings.TrimPrefix(name, goneMark)
	if !isID(muster.InstanceID(id)) {
		return false
	}
	dir := filepath.Join(p.cfg.Dir, name)
	m, err := read(dir)
	if errors.Is(err, fs.ErrNotExist) {
		// A create or a removal was cut off where there is no record: it is nobody's, and holds nothing
		// of anybody. A create that has only begun holds the lock, which remove takes.
		_, err := os.Stat(dir)
		return err == nil
	}
	return err == nil && m.Tags.Owner == p.cfg.Owner && pidOf(dir) == 0
}

// Remove is cloud.Sweeper's.
func (p *Provider) Remove(ctx context.Context, of []cloud.Leftover) []error {
	errs := make([]error, len(of))
	for i, l := range of {
		if p.isLeft(l.ID) {
			errs[i] = p.remove(ctx, l.ID)
		}
	}
	return errs
}

// remove deletes a directory that belongs to no machine any more.
func (p *Provider) remove(ctx context.Context, name string) error {
	dir := filepath.Join(p.cfg.Dir, name)
	if !strings.HasPrefix(name, goneMark) {
		unlock, err := lock(ctx, dir)
		if err != nil {
			return err
		}
		defer unlock()
		if !p.isLeft(name) {
			return nil
		}
		gone := filepath.Join(p.cfg.Dir, goneMark+name)
		if err := os.RemoveAll(gone); err != nil {
			return &muster.Fault{Kind: muster.FaultTransient, Err: err}
		}
		if err := os.Rename(dir, gone); err != nil {
			return &muster.Fault{Kind: muster.FaultTransient, Err: err}
		}
		dir = gone
	}
	// The record goes last: without it nobody knows whose the rest is.
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return &muster.Fault{Kind: muster.FaultTransient, Err: err}
	}
	for _, e := range entries {
		if e.Name() == recordName {
			continue
		}
		if err := errors.Join(p.step("remove "+e.Name()), os.RemoveAll(filepath.Join(dir, e.Name()))); err != nil {
			return &muster.Fault{Kind: muster.FaultTransient, Err: err}
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		return &muster.Fault{Kind: muster.FaultTransient, Err: err}
	}
	return nil
}
