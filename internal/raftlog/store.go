package raftlog

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/segment"
)

// store is raft's LogStore and StableStore: raft-wal behind the latch.
type store struct {
	wal   *wal.WAL
	latch *latch
	// oldestSnapshot is the index of the oldest snapshot that is kept.
	oldestSnapshot func() (uint64, bool)
	// recent is nil for a server alone.
	recent *recent
}

var (
	_ raft.MonotonicLogStore = (*store)(nil)
	_ raft.LogStore          = (*store)(nil)
	_ raft.StableStore       = (*store)(nil)
)

// openStore opens the write-ahead log in dir, which it makes if it is missing.
// raft appends at most that many entries at once.
func openStore(dir string, segmentSize, entries int, l *latch, logger *hcLogger) (*store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, l.trip(OpSegment, err)
	}
	if err := checkMeta(dir); err != nil {
		return nil, err
	}
	meta := &metaStore{latch: l, log: logger.to, largest: largestAppend(entries)}
	w, err := wal.Open(dir,
		wal.WithSegmentSize(segmentSize),
		wal.WithSegmentFiler(segment.NewFiler(dir, &segmentFiles{fs: fs.New(), latch: l})),
		wal.WithMetaStore(meta),
		wal.WithLogger(logger),
	)
	if err != nil {
		// raft-wal leaves it open, and its lock would block the next Open for ever.
		return nil, errors.Join(l.trip(OpRead, err), meta.Close())
	}
	return &store{wal: w, latch: l}, nil
}

// checkMeta refuses segments that nothing says anything about: a new record of
// segments would begin with one that is there already.
func checkMeta(dir string) error {
	if _, err := os.Lstat(filepath.Join(dir, metadb.FileName)); !errors.Is(err, os.ErrNotExist) {
		return nil
	}
	segments, err := filepath.Glob(filepath.Join(dir, "*.wal"))
	if err == nil && len(segments) > 0 {
		err = fmt.Errorf("log %s: %w: it has segments but no %q; restore a backup", dir, ErrDamaged, metadb.FileName)
	}
	return err
}

// guard runs one call of raft's through the latch. That there is no such entry,
// or that the log was closed under one of raft's idle goroutines, is an answer
// and no failure of the disk.
func (s *store) guard(op Op, f func() error) error {
	var answer error
	err := s.latch.do(op, "", func() error {
		answer = f()
		if errors.Is(answer, raft.ErrLogNotFound) || errors.Is(answer, wal.ErrClosed) {
			return nil
		}
		return answer
	})
	if err != nil {
		return err
	}
	return answer
}

// FirstIndex must not end the goroutine, like everything that raft calls when
// it takes a snapshot: somebody waits for that.
func (s *store) FirstIndex() (i uint64, err error) {
	err = s.guard(OpRead, func() error { i, err = s.wal.FirstIndex(); return err })
	return i, err
}

// LastIndex is like FirstIndex.
func (s *store) LastIndex() (i uint64, err error) {
	err = s.guard(OpRead, func() error { i, err = s.wal.LastIndex(); return err })
	return i, err
}

// GetLog is called where raft panics if an entry cannot be read.
func (s *store) GetLog(index uint64, l *raft.Log) error {
	if s.recent != nil && s.recent.get(index, l) {
		return nil
	}
	return s.latch.halt(s.guard(OpRead, func() error { return s.wal.GetLog(index, l) }))
}

func (s *store) StoreLog(l *raft.Log) error { return s.StoreLogs([]*raft.Log{l}) }

// StoreLogs is called where raft steps down after an error and goes on.
func (s *store) StoreLogs(logs []*raft.Log) error {
	err := s.guard(OpStore, func() error { return s.wal.StoreLogs(logs) })
	if err == nil && s.recent != nil {
		s.recent.add(logs)
	}
	return s.latch.halt(err)
}

// DeleteRange shortens what raft wants compacted, so that the log always
// reaches back to the oldest snapshot that is kept: a snapshot whose successors
// are damaged is of use only with the entries after it. Deleting the whole log,
// or its end, is another matter (a follower that was far behind, or wrong).
func (s *store) DeleteRange(lo, hi uint64) error {
	err := s.latch.do(OpCompact, "", func() error {
		first, err := s.wal.FirstIndex()
		if err != nil {
			return err
		}
		last, err := s.wal.LastIndex()
		if err != nil {
			return err
		}
		if lo <= first && hi < last && s.oldestSnapshot != nil {
			oldest, ok := s.oldestSnapshot()
			if !ok {
				return fmt.Errorf("entries %d to %d are in no snapshot", lo, hi)
			}
			hi = min(hi, oldest)
		}
		if lo > hi {
			return nil
		}
		if s.recent != nil {
			s.recent.forget(lo, hi)
		}
		return s.wal.DeleteRange(lo, hi)
	})
	return err // and the goroutine lives on, see FirstIndex
}

func (s *store) IsMonotonic() bool { return true }

// Set, like SetUint64, is called where raft panics if it fails.
func (s *store) Set(key, val []byte) error {
	return s.latch.halt(s.guard(OpVote, func() error { return s.wal.Set(key, val) }))
}

func (s *store) Get(key []byte) (val []byte, err error) {
	err = s.guard(OpRead, func() error { val, err = s.wal.Get(key); return err })
	return val, err
}

func (s *store) SetUint64(key []byte, val uint64) error {
	return s.latch.halt(s.guard(OpVote, func() error { return s.wal.SetUint64(key, val) }))
}

func (s *store) GetUint64(key []byte) (val uint64, err error) {
	err = s.guard(OpRead, func() error { val, err = s.wal.GetUint64(key); return err })
	return val, err
}

func (s *store) close() error { return s.wal.Close() }
