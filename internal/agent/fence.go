package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	wire "github.com/musterhq/muster/internal/wire/agent"
)

// fences keeps the highest fence that was obeyed. Two files: one written
// through to the disk whenever cluster, epoch or term change, and one that follows the index.
// Within a term only the process can be lost with the index still mattering,
// and then the page cache is kept; a power cut ends every sandbox as well.
type fences struct {
	dir string
	// last is what is on disk.
	last wire.Fence
}

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
	name, durable := fenceTipName, false
	if f.Cluster != s.last.Cluster || f.Epoch != s.last.Epoch || f.Term != s.last.Term {
		name, durable = fenceName, true
	}
	if err := writeFile(filepath.Join(s.dir, name), b, durable); err != nil {
		return fmt.Errorf("keep the fence: %w", err)
	}
	s.last = f
	return nil
}

// clear forgets the cluster.
func (s *fences) clear() error {
	for _, name := range []string{fenceTipName, fenceName} {
		if err := os.Remove(filepath.Join(s.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	s.last = wire.Fence{}
	return syncDir(s.dir)
}
