package history

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync/atomic"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/clock"
	"github.com/musterhq/muster/internal/state"
)

// FileName is the file of the store in the data directory.
const FileName = "history.db"

// fileFormat is the format of the file. A file of another format is set aside, and a new one begun.
const fileFormat = 1

// Buckets of the file.
var (
	metaBucket = []byte("meta")
	// jobs by end and uid.
	jobsBucket = []byte("jobs")
	// names have no values: namespace, name, end and uid; and the same with an empty name, for the
	// jobs of a namespace.
	namesBucket = []byte("names")
	// totals of attempts, by uid of the job.
	sumsBucket = []byte("sums")
	// attempts by uid, index and attempt; ages have no values: end, then the key of the attempt.
	attemptsBucket = []byte("attempts")
	agesBucket     = []byte("ages")

	positionKey = []byte("position")
)

// appended is how full pages are made of buckets that are written in the order of their keys.
const appended = 0.9

// position is what the file has: everything up to a log index, of one epoch of one cluster.
type position struct {
	Format  int    `cbor:"1,keyasint"`
	Cluster string `cbor:"2,keyasint"`
	Epoch   uint64 `cbor:"3,keyasint"`
	Index   uint64 `cbor:"4,keyasint"`
}

// Source is the applied state.
type Source interface {
	Latest() *state.Snapshot
	Feed() *state.Feed
}

// Config configures a Store. State and Dir are required.
type Config struct {
	State Source
	// Dir is the data directory.
	Dir string
	// Clock is the clock of the log. Nil means the clock of the system.
	Clock clock.Clock
	// Retention returns how long ended jobs and attempts are kept. It is asked before each pruning,
	// because a reload changes it.
	Retention func() time.Duration
	Logger    *slog.Logger
}

// Store is the history of one server. Run opens its file and writes it; until then, requests are
// refused as unavailable. The store has no lock: the file has one writer, and readers have
// transactions of their own.
type Store struct {
	cfg  Config
	log  *slog.Logger
	path string
	// db is nil while the file is not open.
	db atomic.Pointer[bolt.DB]
	// kept is the index up to which the file has everything.
	kept atomic.Uint64
	// stop ends the present run of serve with a cause: a request has found the file damaged.
	stop atomic.Pointer[context.CancelCauseFunc]
}

// New makes a store. It opens no file.
func New(cfg Config) (*Store, error) {
	if cfg.State == nil || cfg.Dir == "" || cfg.Retention == nil {
		return nil, errors.New("history: state, directory and retention are needed")
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	return &Store{cfg: cfg, log: cfg.Logger.With("loop", "history"), path: filepath.Join(cfg.Dir, FileName)}, nil
}

// Kept returns the index up to which the file has every row that ended. The state may forget a row
// whose last change is not after it. It is 0 until the store has caught up after a start.
func (s *Store) Kept() uint64 { return s.kept.Load() }

// damage says that the file does not hold what it should.
type damage struct{ err error }

func (d *damage) Error() string { return "the history file is damaged: " + d.err.Error() }
func (d *damage) Unwrap() error { return d.err }

// guard runs fn. The file is mapped into memory and has no checksums on its pages: a damaged page
// shows as a panic of the library, or as a fault on an address behind the end of the file. Both
// become errors.
func guard(fn func() error) (err error) {
	before := debug.SetPanicOnFault(true)
	defer debug.SetPanicOnFault(before)
	defer func() {
		if p := recover(); p != nil {
			err = &damage{fmt.Errorf("%v", p)}
		}
	}()
	return fn()
}

// open opens the file. A file that is damaged or of another format is set aside, and a new one
// begun.
func (s *Store) open() (position, error) {
	at, err := s.openFile()
	if !isDamage(err) {
		return at, err
	}
	if err := s.setAside(err); err != nil {
		return position{}, err
	}
	return s.openFile()
}

func isDamage(err error) bool {
	var d *damage
	return errors.As(err, &d)
}

func (s *Store) openFile() (at position, err error) {
	switch info, err := os.Lstat(s.path); {
	case errors.Is(err, os.ErrNotExist):
		s.log.Info("a new history file begins, with what the state still has", "file", s.path)
	case err == nil && info.Mode().IsRegular() && info.Size() > 0 && info.Size() < int64(2*os.Getpagesize()):
		return at, &damage{fmt.Errorf("%s has only %d bytes", s.path, info.Size())}
	}
	var db *bolt.DB
	err = guard(func() error {
		var err error
		db, err = bolt.Open(s.path, 0o600, &bolt.Options{Timeout: time.Second, FreelistType: bolt.FreelistMapType})
		switch {
		case errors.Is(err, berrors.ErrInvalid), errors.Is(err, berrors.ErrChecksum), errors.Is(err, berrors.ErrVersionMismatch):
			return &damage{err}
		case err != nil:
			return fmt.Errorf("open %s: %w", s.path, err)
		}
		return begin(db, &at)
	})
	if err != nil {
		if db != nil {
			_ = guard(db.Close)
		}
		return position{}, err
	}
	s.db.Store(db)
	return at, nil
}

// begin makes the buckets of a new file, and reads the position of an old one.
func begin(db *bolt.DB, at *position) error {
	return db.Update(func(tx *bolt.Tx) error {
		info, err := os.Stat(db.Path())
		if err != nil {
			return err
		}
		// A file that was cut would fault on the first page behind its end.
		if tx.Size() > info.Size() {
			return &damage{fmt.Errorf("%s has %d bytes, and should have %d", db.Path(), info.Size(), tx.Size())}
		}
		meta := tx.Bucket(metaBucket)
		if meta == nil {
			for _, name := range [][]byte{metaBucket, jobsBucket, namesBucket, sumsBucket, attemptsBucket, agesBucket} {
				if _, err := tx.CreateBucket(name); err != nil {
					return err
				}
			}
			at.Format = fileFormat
			return tx.Bucket(metaBucket).Put(positionKey, encode(at))
		}
		if err := decode(meta.Get(positionKey), at); err != nil {
			return err
		}
		if at.Format != fileFormat {
			return &damage{fmt.Errorf("%s has format %d, and this version reads format %d", db.Path(), at.Format, fileFormat)}
		}
		return nil
	})
}

// setAside renames a damaged file, so that a new one can begin. One damaged file is kept.
func (s *Store) setAside(why error) error {
	s.kept.Store(0)
	s.close()
	to := s.path + ".damaged"
	s.log.Error("the history file is damaged: a new one begins, with what the state still has", "error", why, "file", s.path, "renamed_to", to)
	if err := os.Rename(s.path, to); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// close closes the file after the transactions that read it.
func (s *Store) close() {
	if db := s.db.Swap(nil); db != nil {
		_ = guard(db.Close)
	}
}

func (s *Store) update(fn func(*bolt.Tx) error) error {
	db := s.db.Load()
	if db == nil {
		return errClosed
	}
	return guard(func() error { return db.Update(fn) })
}

// view reads. A server without a history has a nil Store, and what is asked of it is unavailable.
func (s *Store) view(fn func(*bolt.Tx) error) error {
	if s == nil {
		return errClosed
	}
	db := s.db.Load()
	if db == nil {
		return errClosed
	}
	err := guard(func() error { return db.View(fn) })
	switch stop := s.stop.Load(); {
	case errors.Is(err, berrors.ErrDatabaseNotOpen):
		return errClosed
	case isDamage(err):
		if stop != nil {
			(*stop)(err)
		}
		return muster.Faultf(muster.FaultUnavailable, "%v; the server begins a new one with what it still knows; try again later", err)
	}
	return err
}

var errClosed = muster.Faultf(muster.FaultUnavailable, "the history is not open; the server's log says why; try again later")

// put writes a job that has ended. The file may have it already.
func (j *job) put(tx *bolt.Tx) error {
	total, err := sumsOf(tx, j.UID)
	if err != nil {
		return err
	}
	at, jobs := timeKey(j.Ended, string(j.UID)), tx.Bucket(jobsBucket)
	jobs.FillPercent = appended
	value := encode(j)
	if total.Ended == j.Ended && bytes.Equal(jobs.Get(at), value) {
		return nil
	}
	if total.Ended != 0 && total.Ended != j.Ended {
		// After a retry, or a restored backup, it ended once more.
		if err := dropJob(tx, timeKey(total.Ended, string(j.UID))); err != nil {
			return err
		}
	}
	total.Ended = j.Ended
	return errors.Join(
		jobs.Put(at, value),
		tx.Bucket(namesBucket).Put(nameKey(j.Namespace, j.Name, at), nil),
		tx.Bucket(namesBucket).Put(nameKey(j.Namespace, "", at), nil),
		tx.Bucket(sumsBucket).Put([]byte(j.UID), encode(total)),
	)
}

// put writes an attempt that has ended. The file may have it already.
func (a *attempt) put(tx *bolt.Tx, uid muster.JobUID) error {
	key, value, attempts := attemptKey(uid, a.Index, a.Attempt), encode(a), tx.Bucket(attemptsBucket)
	before := attempts.Get(key)
	if bytes.Equal(before, value) {
		return nil
	}
	total, err := sumsOf(tx, uid)
	if err != nil {
		return err
	}
	if before != nil {
		var old attempt
		if err := decode(before, &old); err != nil {
			return err
		}
		total.add(key, &old, -1)
		if err := tx.Bucket(agesBucket).Delete(timeKey(old.Ended, string(key))); err != nil {
			return err
		}
	}
	total.add(key, a, 1)
	return errors.Join(
		attempts.Put(key, value),
		tx.Bucket(agesBucket).Put(timeKey(a.Ended, string(key)), nil),
		tx.Bucket(sumsBucket).Put([]byte(uid), encode(total)),
	)
}

func sumsOf(tx *bolt.Tx, uid muster.JobUID) (*sums, error) {
	out := &sums{}
	if b := tx.Bucket(sumsBucket).Get([]byte(uid)); b != nil {
		return out, decode(b, out)
	}
	return out, nil
}

// reopen takes a job out of those that have ended, if it is among them.
func reopen(tx *bolt.Tx, uid muster.JobUID) error {
	total, err := sumsOf(tx, uid)
	if err != nil || total.Ended == 0 {
		return err
	}
	at := timeKey(total.Ended, string(uid))
	total.Ended = 0
	return errors.Join(dropJob(tx, at), tx.Bucket(sumsBucket).Put([]byte(uid), encode(total)))
}

// dropJob deletes a job, but neither its attempts nor their totals.
func dropJob(tx *bolt.Tx, at []byte) error {
	jobs, j := tx.Bucket(jobsBucket), &job{}
	value := jobs.Get(at)
	if value == nil {
		return nil
	}
	if err := decode(value, j); err != nil {
		return err
	}
	return errors.Join(
		jobs.Delete(at),
		tx.Bucket(namesBucket).Delete(nameKey(j.Namespace, j.Name, at)),
		tx.Bucket(namesBucket).Delete(nameKey(j.Namespace, "", at)),
	)
}

// prune deletes up to limit attempts and jobs that ended before a time. It reports whether there are
// more.
func (s *Store) prune(before muster.Time, limit int) (pruned int, more bool, err error) {
	err = s.update(func(tx *bolt.Tx) error {
		old := func(bucket []byte) (keys [][]byte) {
			c := tx.Bucket(bucket).Cursor()
			for k, _ := c.First(); k != nil && len(keys) < limit && bytes.Compare(k, timeKey(before, "")) < 0; k, _ = c.Next() {
				keys = append(keys, bytes.Clone(k))
			}
			return keys
		}
		ages := old(agesBucket)
		for _, k := range ages {
			if err := errors.Join(tx.Bucket(agesBucket).Delete(k), tx.Bucket(attemptsBucket).Delete(k[8:])); err != nil {
				return err
			}
		}
		jobs := old(jobsBucket)
		for _, k := range jobs {
			if err := errors.Join(dropJob(tx, k), tx.Bucket(sumsBucket).Delete(k[8:])); err != nil {
				return err
			}
		}
		pruned, more = len(jobs), len(ages) == limit || len(jobs) == limit
		return nil
	})
	return pruned, more, err
}
