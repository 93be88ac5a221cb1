package raftlog

import (
	"log/slog"
	"os"

	"github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/types"
)

// segmentFiles are the files of the write-ahead log, each operation through the
// latch. raft-wal only logs some of its errors (a rotation that failed) and the
// next append then fails for another reason; here the first cause counts.
type segmentFiles struct {
	fs    *fs.FS
	latch *latch
}

var _ types.VFS = (*segmentFiles)(nil)

func (s *segmentFiles) ListDir(dir string) (names []string, err error) {
	err = s.latch.do(OpRead, dir, func() error {
		names, err = s.fs.ListDir(dir)
		return err
	})
	return names, err
}

func (s *segmentFiles) Create(dir, name string, size uint64) (types.WritableFile, error) {
	var f types.WritableFile
	err := s.latch.do(OpSegment, name, func() (err error) {
		f, err = s.fs.Create(dir, name, size)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &segmentFile{WritableFile: f, name: name, latch: s.latch}, nil
}

func (s *segmentFiles) Delete(dir, name string) error {
	return s.latch.do(OpDelete, name, func() error { return s.fs.Delete(dir, name) })
}

func (s *segmentFiles) OpenReader(dir, name string) (types.ReadableFile, error) {
	var f types.ReadableFile
	err := s.latch.do(OpRead, name, func() (err error) {
		f, err = s.fs.OpenReader(dir, name)
		return err
	})
	return f, err
}

// OpenWriter opens the tail. That it is missing is no error: it is made then.
func (s *segmentFiles) OpenWriter(dir, name string) (types.WritableFile, error) {
	f, err := s.fs.OpenWriter(dir, name)
	if os.IsNotExist(err) {
		return nil, err
	}
	if err := s.latch.do(OpRead, name, func() error { return err }); err != nil {
		return nil, err
	}
	return &segmentFile{WritableFile: f, name: name, latch: s.latch}, nil
}

// segmentFile is one segment that is written.
type segmentFile struct {
	types.WritableFile
	name  string
	latch *latch
}

func (f *segmentFile) WriteAt(p []byte, off int64) (n int, err error) {
	err = f.latch.do(OpWrite, f.name, func() error {
		n, err = f.WritableFile.WriteAt(p, off)
		return err
	})
	return n, err
}

func (f *segmentFile) Sync() error {
	return f.latch.do(OpSync, f.name, f.WritableFile.Sync)
}

// metaStore is raft-wal's own, through the latch, and with the repair of the
// tail (repair.go) when it is loaded.
type metaStore struct {
	metadb.BoltMetaDB
	latch   *latch
	log     *slog.Logger
	largest int64 // bytes of one append
}

var _ types.MetaStore = (*metaStore)(nil)

func (m *metaStore) Load(dir string) (types.PersistentState, error) {
	s, err := m.BoltMetaDB.Load(dir)
	if err != nil {
		return s, err
	}
	done, err := repairTail(dir, &s, m.largest)
	if err != nil || done == (repair{}) {
		return s, err
	}
	m.log.Info("the log was not closed; its end was put in order, and nothing confirmed is lost",
		"segment", done.segment, "cut-short-write", done.torn, "half-finished-rotation", done.sealed)
	if !done.sealed {
		return s, nil
	}
	return s, m.CommitState(s)
}

func (m *metaStore) CommitState(s types.PersistentState) error {
	return m.latch.do(OpMeta, metadb.FileName, func() error { return m.BoltMetaDB.CommitState(s) })
}

func (m *metaStore) SetStable(key, value []byte) error {
	return m.latch.do(OpVote, metadb.FileName, func() error { return m.BoltMetaDB.SetStable(key, value) })
}
