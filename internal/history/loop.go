package history

import (
	"context"
	"errors"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

const (
	// batch bounds the rows of one transaction.
	batch = 1024
	// gather is how long changes are gathered, so that a busy server does not fsync for each.
	gather = 200 * time.Millisecond
	// pruneEvery is the time between two prunings.
	pruneEvery = 10 * time.Minute
	// retryAfter is the delay after a failure: a full disk, as a rule.
	retryAfter = 10 * time.Second
)

// Run opens the file, catches up with the state, and follows its changes until ctx ends. A failure
// is logged and tried again later: the server goes on without its history, and the state keeps the
// rows meanwhile.
func (s *Store) Run(ctx context.Context) error {
	defer s.close()
	for failed := false; ctx.Err() == nil; {
		err := s.serve(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case isDamage(err):
			err = s.setAside(err)
		}
		if err == nil {
			continue
		}
		if !failed {
			s.log.Error("the history is not written; it is tried again, and ended jobs stay in the state meanwhile", "error", err)
			failed = true
		}
		pause(ctx, retryAfter)
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// serve writes until ctx ends or something fails.
func (s *Store) serve(ctx context.Context) (err error) {
	ctx, stop := context.WithCancelCause(ctx)
	s.stop.Store(&stop)
	defer func() {
		s.stop.Store(nil)
		if cause := context.Cause(ctx); isDamage(cause) {
			err = cause
		}
		stop(nil)
	}()
	var at position
	if db := s.db.Load(); db == nil {
		at, err = s.open()
	} else {
		err = guard(func() error { return begin(db, &at) })
	}
	for pruned := muster.Time(0); err == nil && ctx.Err() == nil; {
		at, err = s.catchUp(ctx, at)
		if err == nil {
			err = s.follow(ctx, &at, &pruned)
		}
	}
	return err
}

// catchUp writes the ended rows of the state that changed after a position, batch by batch, and
// returns the new position. Rows that did not change after it are in the file.
func (s *Store) catchUp(ctx context.Context, at position) (position, error) {
	snap := s.cfg.State.Latest()
	meta := snap.Meta()
	after := at.Index
	if at.Cluster != meta.Cluster || at.Epoch != meta.Epoch || at.Index > meta.Index {
		// The log is another one: that of a restored backup, or of a new cluster.
		after = 0
	}
	w := &writer{s: s}
	snap.Allocs("", func(a *state.Alloc) bool {
		if a.Modified > after {
			w.alloc(a)
		}
		return w.full(ctx)
	})
	snap.EndedJobs(func(j *state.Job) bool {
		if j.Modified > after {
			w.job(j)
		}
		return w.full(ctx)
	})
	// A job that is live may have been retried after its end.
	snap.Jobs(muster.JobKey{}, func(j *state.Job) bool {
		if j.Modified > after {
			w.live(j)
		}
		return w.full(ctx)
	})
	next := position{Format: fileFormat, Cluster: meta.Cluster, Epoch: meta.Epoch, Index: meta.Index}
	if err := errors.Join(ctx.Err(), w.flush(&next)); err != nil {
		return at, err
	}
	s.kept.Store(next.Index)
	return next, nil
}

// follow writes what the feed brings. It returns nil when the feed has lost changes, or when the
// state was replaced: the caller catches up then.
func (s *Store) follow(ctx context.Context, at *position, pruned *muster.Time) error {
	pos := state.AfterIndex(at.Index)
	for ctx.Err() == nil {
		if now := s.cfg.Clock.Now(); now-*pruned >= muster.Time(pruneEvery/time.Microsecond) {
			more, err := s.pruneSome(now)
			if err != nil {
				return err
			}
			if !more {
				*pruned = now
			}
		}
		read := time.Now()
		changes, last, err := s.cfg.State.Feed().After(pos, batch)
		if err != nil {
			return nil
		}
		if meta := s.cfg.State.Latest().Meta(); meta.Epoch != at.Epoch || meta.Cluster != at.Cluster {
			return nil
		}
		w := &writer{s: s}
		for i := range changes {
			if c := &changes[i]; c.Alloc != nil {
				w.alloc(c.Alloc)
			} else if c.Job != nil {
				w.job(c.Job)
				if c.JobBefore != nil && c.JobBefore.Stage == muster.JobEnded {
					w.live(c.Job)
				}
			}
		}
		whole := len(changes) < batch
		if whole {
			pos, at.Index = state.AfterIndex(last), last
		} else {
			// The entry of the last change may have more of them.
			pos = changes[batch-1].Position()
			at.Index = max(at.Index, pos.Index-1)
		}
		if len(w.rows) > 0 {
			if err := w.flush(at); err != nil {
				return err
			}
		}
		s.kept.Store(at.Index)
		if !whole {
			continue
		}
		// The end of a job is there as soon as somebody can look for it; only on a busy server changes
		// are gathered.
		if s.wait(ctx, last, *pruned) {
			pause(ctx, gather-time.Since(read))
		}
	}
	return nil
}

// wait waits for an entry after index, and reports whether there is one: it may be time to prune
// before.
func (s *Store) wait(ctx context.Context, index uint64, pruned muster.Time) bool {
	due := pruned.Add(pruneEvery).Sub(s.cfg.Clock.Now())
	if due <= 0 {
		return false
	}
	timed, cancel := context.WithTimeout(ctx, due)
	defer cancel()
	return s.cfg.State.Feed().Wait(timed, index) == nil
}

// pruneSome deletes one batch of what is older than the retention.
func (s *Store) pruneSome(now muster.Time) (more bool, err error) {
	n, more, err := s.prune(now.Add(-s.cfg.Retention()), batch)
	if n > 0 {
		s.log.Info("history of jobs deleted that is past its retention", "jobs", n)
	}
	return more, err
}

// writer gathers rows for one transaction.
type writer struct {
	s    *Store
	rows []func(*bolt.Tx) error
	err  error
}

// alloc takes an allocation that has ended. Runners are not in the history.
func (w *writer) alloc(a *state.Alloc) {
	if a.Live() || a.Runner != "" {
		return
	}
	w.rows = append(w.rows, func(tx *bolt.Tx) error { return attemptOf(a).put(tx, a.UID) })
}

// job takes a job that has ended. Environments are not in the history.
func (w *writer) job(j *state.Job) {
	if j.Stage != muster.JobEnded || j.Env != nil {
		return
	}
	w.rows = append(w.rows, func(tx *bolt.Tx) error { return jobOf(j).put(tx) })
}

// live takes a job that may be in the file as ended, and lives: it is not among those that ended
// until it ends again. Its attempts and their totals stay.
func (w *writer) live(j *state.Job) {
	if j.Stage == muster.JobEnded || j.Env != nil {
		return
	}
	w.rows = append(w.rows, func(tx *bolt.Tx) error { return reopen(tx, j.UID) })
}

// full writes a full batch. It reports whether to go on.
func (w *writer) full(ctx context.Context) bool {
	if len(w.rows) >= batch {
		w.err = w.flush(nil)
	}
	return w.err == nil && ctx.Err() == nil
}

// flush writes what was gathered, and with it the position, if there is one: in one transaction, so
// that a crash leaves both or neither.
func (w *writer) flush(at *position) error {
	if w.err != nil {
		return w.err
	}
	rows := w.rows
	w.rows = w.rows[:0]
	return w.s.update(func(tx *bolt.Tx) error {
		for _, put := range rows {
			if err := put(tx); err != nil {
				return err
			}
		}
		if at == nil {
			return nil
		}
		return tx.Bucket(metaBucket).Put(positionKey, encode(at))
	})
}
