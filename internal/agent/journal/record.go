package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/boot"
	"github.com/musterhq/muster/internal/atomicfile"
)

// Record is what a running agent leaves in its directory, so that others can tell whether it lives
// without asking it.
type Record struct {
	Pid int `json:"pid"`
	// Start is when the process started, in clock ticks since the machine's boot: with Pid and
	// Kernel it names the process for ever.
	Start uint64 `json:"start"`
	// Kernel is the boot id of the machine.
	Kernel  string        `json:"kernel"`
	Node    muster.NodeID `json:"node"`
	Version string        `json:"version"`
	// Boot is the agent's own id of this run, as in its Hello.
	Boot string `json:"boot"`
	// Dir is where the agent's directory was when it began; empty in records of older agents.
	Dir string `json:"dir,omitempty"`
}

// NewRecord is the record of this process as the agent of a node.
func NewRecord(node muster.NodeID, version, run, dir string) Record {
	start, _ := boot.ProcessStart(os.Getpid())
	return Record{Pid: os.Getpid(), Start: start, Kernel: boot.ID(), Node: node, Version: version, Boot: run, Dir: dir}
}

// Write puts the record into an agent's directory. The caller holds the directory's lock.
func (r Record) Write(dir string) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return atomicfile.Replace(filepath.Join(dir, RecordName), b)
}

// ReadRecord reads the record of the agent that last ran in dir. The error is fs.ErrNotExist if
// none ever did.
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

// Moved reports whether the agent's directory is now elsewhere. An agent whose directory was moved cannot
// write its files; one that is started at the new place finds all sandboxes again.
func (r Record) Moved(dir string) bool { return r.Dir != "" && r.Dir != dir }

// Alive reports whether the recorded process still runs.
func (r Record) Alive() bool {
	if r.Pid <= 0 || r.Kernel != boot.ID() {
		return false
	}
	start, ok := boot.ProcessStart(r.Pid)
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
	// The handle is of whichever process has the pid now. Only this check proves that it is the
	// recorded one, and afterwards the handle cannot change to another process.
	if !r.Alive() {
		return nil
	}
	if err := p.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("agent process %d: %w", r.Pid, err)
	}
	return nil
}
