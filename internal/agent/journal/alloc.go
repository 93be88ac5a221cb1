package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// The agent's own names in the directory of one allocation. All others are the runtime's. A
// directory without a journal is rubbish.
const (
	allocName   = "alloc.jsonl"
	workName    = "work"
	tempName    = "tmp"
	outputsName = "outputs"
)

// AllocDir is the path of an allocation's directory. The runtime keeps the sandbox there too.
type AllocDir string

// OfAlloc is the directory of an allocation below an agent's directory.
func OfAlloc(dir string, id muster.AllocID) AllocDir {
	return AllocDir(filepath.Join(dir, SandboxesName, string(id)))
}

// Work is the directory for inputs, outputs and the command itself, unless the job brings one of
// its own.
func (d AllocDir) Work() string { return filepath.Join(string(d), workName) }

// Temp is the TMPDIR of a command that runs as a process of the node.
func (d AllocDir) Temp() string { return filepath.Join(string(d), tempName) }

// Output is the path of the n-th collected output, a tar.
func (d AllocDir) Output(n int) string {
	return filepath.Join(string(d), outputsName, strconv.Itoa(n)+".tar")
}

// MakeWork makes the work directory; it may be there already.
func (d AllocDir) MakeWork() error { return makeDir(d.Work(), 0o755) }

// MakeTemp makes the temporary directory; it may be there already.
func (d AllocDir) MakeTemp() error { return makeDir(d.Temp(), 0o700) }

// MakeOutputs makes the directory of the collected outputs; it may be there already.
func (d AllocDir) MakeOutputs() error { return makeDir(filepath.Join(string(d), outputsName), 0o700) }

func makeDir(path string, mode fs.FileMode) error {
	err := os.Mkdir(path, mode)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// Step is one line of an allocation's journal: what is true from then on. All steps are in one
// file, because making and deleting files is most of what a command that does nothing costs.
type Step struct {
	// Spec: the agent has the allocation, and a restarted agent knows it too.
	Spec *wire.AllocSpec `json:"spec,omitempty"`
	// Begun: the agent is about to ask the runtime. It asks again only if the runtime says that
	// nothing was ever started.
	Begun *Begun `json:"begun,omitempty"`
	// Ran is when the runtime started the sandbox.
	Ran muster.Time `json:"ran,omitempty"`
	// Ready is since when the allocation is ready.
	Ready muster.Time `json:"ready,omitempty"`
	// End is the final report.
	End *wire.AllocReport `json:"end,omitempty"`
}

// Begun is the step before the runtime is asked.
type Begun struct {
	Runtime string      `json:"runtime"`
	At      muster.Time `json:"at"`
	// Image is the digest of the image that the sandbox is started from; empty: none.
	Image string `json:"image,omitempty"`
}

// History is all steps of a journal as one.
type History struct {
	Step
	// Begins is how often the allocation was marked as begun.
	Begins int
	// Whole says that no line was torn.
	Whole bool
}

// Create makes the directory and begins its journal. A directory that is there is used.
func (d AllocDir) Create(spec *wire.AllocSpec) error {
	if err := makeDir(string(d), 0o700); err != nil {
		return err
	}
	return d.Append(Step{Spec: spec})
}

// Append adds a step by one write: a killed agent has done all of it or nothing.
func (d AllocDir) Append(s Step) error {
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(string(d), allocName), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}

// Read reads the journal. It skips lines that are torn or that only a later version can read. The
// error is fs.ErrNotExist if there is no journal.
func (d AllocDir) Read() (History, error) {
	b, err := os.ReadFile(filepath.Join(string(d), allocName))
	if err != nil {
		return History{}, err
	}
	all := History{Whole: true}
	for line := range bytes.Lines(b) {
		var s Step
		if json.Unmarshal(line, &s) != nil {
			all.Whole = false
			continue
		}
		if s.Spec != nil {
			all.Spec = s.Spec
		}
		if s.Begun != nil {
			all.Begun = s.Begun
			all.Begins++
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
	return all, nil
}

// Unended reports whether the sandbox of the directory was begun and no agent has written down its
// end.
func (d AllocDir) Unended() (bool, error) {
	was, err := d.Read()
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return was.Begun != nil && was.End == nil, err
}

// Disown deletes the journal: from then on a restarted agent takes the rest for rubbish, and not
// for something to start. It may be gone already.
func (d AllocDir) Disown() error {
	err := os.Remove(filepath.Join(string(d), allocName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Remove deletes the directory with all that is in it. The runtime has removed the sandbox before.
func (d AllocDir) Remove() error {
	// Most commands leave these two empty. Without them the tree has one level only, and is not
	// searched for more.
	for _, name := range []string{workName, tempName} {
		_ = unix.Rmdir(filepath.Join(string(d), name))
	}
	return RemoveTree(string(d))
}
