package fencing

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/musterhq/muster/internal/atomicfile"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// The two files of a fence.
const (
	// FenceName has cluster, epoch and term; the other file follows the index.
	FenceName    = "fence.json"
	fenceTipName = "fence-tip.json"
)

// Fences keeps the highest fence that was obeyed, in two files: one is written through to the disk
// whenever cluster, epoch or term change, the other one follows the index. Within a term the index
// matters only after the loss of the process, which keeps the page cache; a power cut ends every
// sandbox as well. It is for one goroutine at a time.
type Fences struct {
	dir string
	// last is what was saved.
	last wire.Fence
	// tip is the second file, open once this process has written it.
	tip *os.File
}

// tipSize is the size of the second file: each fence is padded to it and written over the one
// before by one write within a page, which a killed agent has done or has not. A new file each time
// took more of a busy agent's time than anything else that it does for a set.
const tipSize = 512

// LoadFences reads the highest fence that an agent of the directory obeyed. A file that cannot be
// read is an error.
func LoadFences(dir string) (*Fences, error) {
	s := &Fences{dir: dir}
	b, err := os.ReadFile(filepath.Join(dir, FenceName))
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &s.last)
	}
	if err != nil {
		// Without the fence the agent would obey a server that was replaced long ago: a person
		// decides.
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, FenceName), err)
	}
	var tip wire.Fence
	if b, err := os.ReadFile(filepath.Join(dir, fenceTipName)); err == nil && json.Unmarshal(b, &tip) == nil &&
		tip.Cluster == s.last.Cluster && tip.Compare(s.last) > 0 {
		s.last = tip
	}
	return s, nil
}

// Last is the highest fence that was saved. It is zero if none was ever obeyed.
func (s *Fences) Last() wire.Fence { return s.last }

// Check says why a fence may not be obeyed, or nil.
func (s *Fences) Check(f wire.Fence) *wire.Refusal {
	switch {
	case f.Cluster == "":
		return &wire.Refusal{Code: wire.RefusedCluster, Message: "the set names no cluster", Fence: s.last}
	case s.last.Cluster == "":
		return nil
	case f.Cluster != s.last.Cluster:
		return &wire.Refusal{Code: wire.RefusedCluster, Fence: s.last, Message: fmt.Sprintf(
			"this node obeys cluster %s and not %s; an operator can release it from %s first", s.last.Cluster, f.Cluster, s.last.Cluster)}
	case f.Compare(s.last) < 0:
		return &wire.Refusal{Code: wire.RefusedFence, Fence: s.last, Message: fmt.Sprintf(
			"the set is older than what this node obeyed: sent %s, obeyed %s", f, s.last)}
	}
	return nil
}

// Save makes f the highest fence. When it returns nil, f survives the end of the agent; its cluster,
// epoch and term survive a power cut as well.
func (s *Fences) Save(f wire.Fence) error {
	if f == s.last {
		return nil
	}
	b, err := json.Marshal(f)
	if err != nil {
		return err
	}
	if f.Cluster != s.last.Cluster || f.Epoch != s.last.Epoch || f.Term != s.last.Term || len(b) >= tipSize {
		err = atomicfile.Write(filepath.Join(s.dir, FenceName), b)
	} else {
		err = s.writeTip(b)
	}
	if err != nil {
		return fmt.Errorf("keep the fence: %w", err)
	}
	s.last = f
	return nil
}

func (s *Fences) writeTip(b []byte) (err error) {
	b = append(b, bytes.Repeat([]byte{' '}, tipSize-len(b)-1)...)
	b = append(b, '\n')
	if s.tip == nil {
		// An agent before may have left one of another size, which must count until ours does.
		path := filepath.Join(s.dir, fenceTipName)
		if err := atomicfile.Replace(path, b); err != nil {
			return err
		}
		s.tip, err = os.OpenFile(path, os.O_WRONLY, 0)
		return err
	}
	n, err := s.tip.WriteAt(b, 0)
	if err == nil && n < tipSize {
		err = io.ErrShortWrite
	}
	return err
}

// Close closes the open file; the next Save opens it again.
func (s *Fences) Close() {
	if s.tip != nil {
		_ = s.tip.Close()
		s.tip = nil
	}
}

// Clear forgets the cluster, on the disk too.
func (s *Fences) Clear() error {
	s.Close()
	for _, name := range []string{fenceTipName, FenceName} {
		if err := os.Remove(filepath.Join(s.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	s.last = wire.Fence{}
	return atomicfile.SyncDir(s.dir)
}
