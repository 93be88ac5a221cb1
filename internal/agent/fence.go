package agent

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
	fenceName    = "fence.json"
	fenceTipName = "fence-tip.json"
)

// fences keeps the highest fence that was obeyed. Two files: one written
// through to the disk whenever cluster, epoch or term change, and one that follows the index.
// Within a term only the process can be lost with the index still mattering,
// and then the page cache is kept; a power cut ends every sandbox as well.
type fences struct {
	dir string
	// last is what is on disk.
	last wire.Fence
	// tip is the second file, open once this process has written it.
	tip *os.File
}

// tipSize is the size of the second file: each fence is padded to it and written
// over the one before by one write within a page, which a killed agent has done or has not. A new
// file each time took more of a busy agent's time than anything else that it does for a set.
const tipSize = 512

func loadFences(dir string) (*fences, error) {
	s := &fences{dir: dir}
	b, err := os.ReadFile(filepath.Join(dir, fenceName))
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &s.last)
	}
	if err != nil {
		// Without the fence a server long replaced would be obeyed: a person decides.
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, fenceName), err)
	}
	var tip wire.Fence
	if b, err := os.ReadFile(filepath.Join(dir, fenceTipName)); err == nil && json.Unmarshal(b, &tip) == nil &&
		tip.Cluster == s.last.Cluster && tip.Compare(s.last) > 0 {
		s.last = tip
	}
	return s, nil
}

// check says why a fence may not be obeyed, or nil.
func (s *fences) check(f wire.Fence) *wire.Refusal {
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

// save makes f the highest. Called by one goroutine at a time.
func (s *fences) save(f wire.Fence) error {
	if f == s.last {
		return nil
	}
	b, err := json.Marshal(f)
	if err != nil {
		return err
	}
	if f.Cluster != s.last.Cluster || f.Epoch != s.last.Epoch || f.Term != s.last.Term || len(b) >= tipSize {
		err = atomicfile.Write(filepath.Join(s.dir, fenceName), b)
	} else {
		err = s.writeTip(b)
	}
	if err != nil {
		return fmt.Errorf("keep the fence: %w", err)
	}
	s.last = f
	return nil
}

func (s *fences) writeTip(b []byte) (err error) {
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

// close gives up the open file; the next save opens it again.
func (s *fences) close() {
	if s.tip != nil {
		_ = s.tip.Close()
		s.tip = nil
	}
}

// clear forgets the cluster.
func (s *fences) clear() error {
	s.close()
	for _, name := range []string{fenceTipName, fenceName} {
		if err := os.Remove(filepath.Join(s.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	s.last = wire.Fence{}
	return atomicfile.SyncDir(s.dir)
}
