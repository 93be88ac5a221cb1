package raftlog

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/musterhq/muster/internal/raftlog/image"
)

const (
	snapshotSuffix = ".image"
	tmpSuffix      = ".tmp"

	// A snapshot is synced in pieces: one fsync of hundreds of megabytes at the
	// end would hold up the log's own, which shares the file system's journal.
	snapshotSyncEvery = 8 << 20
)

// snapshots is raft's SnapshotStore: one image file per snapshot, whole or not
// there. A file that is being written has another name until it is durable.
type snapshots struct {
	dir      string
	retain   int
	latch    *latch
	log      *slog.Logger
	stopping atomic.Bool // snapshots that are being written give up

	mu   sync.Mutex
	kept []*raft.SnapshotMeta // newest first
}

var _ raft.SnapshotStore = (*snapshots)(nil)

var errSnapshotStopped = fmt.Errorf("snapshot given up: %w", ErrStopping)

// openSnapshots lists what is there and removes what a crash left half written.
func openSnapshots(dir string, retain int, l *latch, log *slog.Logger) (*snapshots, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, l.trip(OpSnapshotRead, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, l.trip(OpSnapshotRead, err)
	}
	s := &snapshots{dir: dir, retain: retain, latch: l, log: log}
	for _, e := range entries {
		name := filepath.Join(dir, e.Name())
		if strings.HasSuffix(name, tmpSuffix) {
			if err := os.Remove(name); err != nil {
				return nil, l.trip(OpSnapshotRead, err)
			}
			continue
		}
		if !strings.HasSuffix(name, snapshotSuffix) {
			continue
		}
		meta, err := readSnapshotMeta(name)
		if errors.Is(err, ErrDamaged) {
			log.Warn("a snapshot is damaged and passed over", "file", name, "error", err)
			continue
		}
		if err != nil {
			return nil, l.trip(OpSnapshotRead, fmt.Errorf("%s: %w", e.Name(), err))
		}
		s.kept = append(s.kept, meta)
	}
	slices.SortFunc(s.kept, newerFirst)
	return s, nil
}

func newerFirst(a, b *raft.SnapshotMeta) int {
	if a.Index != b.Index {
		if a.Index > b.Index {
			return -1
		}
		return 1
	}
	return int(b.Term) - int(a.Term)
}

func snapshotID(index, term uint64) string { return fmt.Sprintf("%020d-%d", index, term) }

func (s *snapshots) file(id string) string { return filepath.Join(s.dir, id+snapshotSuffix) }

func readSnapshotMeta(name string) (*raft.SnapshotMeta, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	_, h, err := image.NewReader(f)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	size, err := image.BodyLength(f, st.Size())
	if err != nil {
		return nil, err
	}
	return metaOf(h, size), nil
}

// metaOf is what raft knows of a snapshot whose body has that many bytes.
func metaOf(h image.Header, size int64) *raft.SnapshotMeta {
	return &raft.SnapshotMeta{
		Version:            raft.SnapshotVersionMax,
		ID:                 snapshotID(h.Index, h.Term),
		Index:              h.Index,
		Term:               h.Term,
		Configuration:      h.Configuration,
		ConfigurationIndex: h.ConfigurationIndex,
		Size:               size,
	}
}

// List gives the snapshots, newest first.
func (s *snapshots) List() ([]*raft.SnapshotMeta, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.kept), nil
}

// oldest is the index that the log must reach back to.
func (s *snapshots) oldest() (uint64, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.kept) == 0 {
		return 0, false
	}
	return s.kept[len(s.kept)-1].Index, true
}

// newestSize is the length of the newest snapshot, 0 if there is none.
func (s *snapshots) newestSize() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.kept) == 0 {
		return 0
	}
	return uint64(s.kept[0].Size)
}

// Open checks the whole file before it hands out a byte: a machine that was
// half restored from a damaged one would have to be thrown away.
func (s *snapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	f, err := os.Open(s.file(id))
	if err != nil {
		return nil, nil, err
	}
	r, h, err := image.NewReader(f)
	if err == nil {
		_, err = io.Copy(io.Discard, r)
	}
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("snapshot %s: %w", id, err), f.Close())
	}
	size := r.Length()
	if r, _, err = image.NewReader(f); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("snapshot %s: %w", id, err), f.Close())
	}
	return metaOf(h, size), &snapshotReader{Reader: r, f: f}, nil
}

type snapshotReader struct {
	*image.Reader
	f *os.File
}

func (r *snapshotReader) Close() error { return r.f.Close() }

// Create begins a snapshot.
func (s *snapshots) Create(version raft.SnapshotVersion, index, term uint64, c raft.Configuration, cIndex uint64, _ raft.Transport) (raft.SnapshotSink, error) {
	if version != raft.SnapshotVersionMax {
		return nil, fmt.Errorf("snapshot version %d is not known", version)
	}
	if s.stopping.Load() {
		return nil, errSnapshotStopped
	}
	h := image.Header{Index: index, Term: term, Configuration: c, ConfigurationIndex: cIndex}
	k := &snapshotSink{s: s, id: snapshotID(index, term)}
	k.tmp = s.file(k.id) + tmpSuffix
	err := s.latch.try(OpSnapshotCreate, k.tmp, k.open)
	if err != nil {
		return nil, err
	}
	if k.body, err = image.NewWriter(sinkFile{k}, h); err != nil {
		return nil, errors.Join(err, k.Cancel())
	}
	k.header = h
	return k, nil
}

// open opens all that the snapshot will need, so that nothing is short once it is being written.
func (k *snapshotSink) open() (err error) {
	if k.dir, err = os.Open(k.s.dir); err != nil {
		return err
	}
	if k.f, err = os.OpenFile(k.tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600); err != nil {
		return errors.Join(err, k.dir.Close())
	}
	return nil
}

// snapshotSink is a snapshot that is being written.
type snapshotSink struct {
	s        *snapshots
	id, tmp  string
	header   image.Header
	f, dir   *os.File
	body     *image.Writer
	unsynced int
	closed   bool
}

// sinkFile is what the image writer writes to.
type sinkFile struct{ k *snapshotSink }

func (w sinkFile) Write(p []byte) (n int, err error) {
	k := w.k
	if k.s.stopping.Load() {
		return 0, errSnapshotStopped
	}
	err = k.s.latch.do(OpSnapshotWrite, k.tmp, func() error {
		n, err = k.f.Write(p)
		return err
	})
	k.unsynced += n
	if err == nil && k.unsynced >= snapshotSyncEvery {
		err = k.sync()
	}
	return n, err
}

func (k *snapshotSink) sync() error {
	k.unsynced = 0
	return k.s.latch.do(OpSnapshotSync, k.tmp, k.f.Sync)
}

func (k *snapshotSink) ID() string { return k.id }

func (k *snapshotSink) Write(p []byte) (int, error) { return k.body.Write(p) }

// Cancel removes what was written. That fails only on a disk that fails, and
// the next Open removes it then.
func (k *snapshotSink) Cancel() error {
	if k.closed {
		return nil
	}
	k.closed = true
	return errors.Join(k.f.Close(), k.dir.Close(), os.Remove(k.tmp))
}

// Close makes the snapshot durable, keeps it, and lets go of the ones that are
// too many.
func (k *snapshotSink) Close() error {
	if k.closed {
		return nil
	}
	err := k.body.Finish()
	if err == nil {
		err = k.sync()
	}
	if err != nil {
		return errors.Join(err, k.Cancel())
	}
	k.closed = true
	s := k.s
	return s.latch.do(OpSnapshotKeep, k.tmp, func() error {
		if err := k.f.Close(); err != nil {
			return err
		}
		if err := os.Rename(k.tmp, s.file(k.id)); err != nil {
			return err
		}
		if err := errors.Join(k.dir.Sync(), k.dir.Close()); err != nil {
			return err
		}
		for _, id := range s.keep(metaOf(k.header, k.body.Length())) {
			if err := os.Remove(s.file(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		return nil
	})
}

// keep adds a snapshot to the list and gives the ids of those to delete.
func (s *snapshots) keep(m *raft.SnapshotMeta) (drop []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept = slices.DeleteFunc(s.kept, func(o *raft.SnapshotMeta) bool { return o.ID == m.ID })
	s.kept = append(s.kept, m)
	slices.SortFunc(s.kept, newerFirst)
	for len(s.kept) > s.retain {
		drop = append(drop, s.kept[len(s.kept)-1].ID)
		s.kept = s.kept[:len(s.kept)-1]
	}
	return drop
}
