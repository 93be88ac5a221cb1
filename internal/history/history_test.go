package history

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/control/link/linktest"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/state"
)

// rig is a log, and the history of a server that applies it.
type rig struct {
	testing.TB
	l    *linktest.Ledger
	dir  string
	logs *logs
	keep time.Duration
	n    int
	// used is the CPU time and memory that agents report.
	used int64
}

func TestAnImpossibleUsageIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s, stop := r.run()
		defer stop()
		r.used = math.MaxInt64
		r.job("x", 0)
		r.used = -5
		r.job("x", 0)
		r.settle(s)
		jobs := r.list(s, Query{}).Jobs
		if jobs[1].CPUSeconds > 1<<31 || jobs[1].PeakMemory != 1<<47 || jobs[0].CPUSeconds != 0 || jobs[0].PeakMemory != 0 {
			t.Errorf("%+v", jobs)
		}
	})
}

// logs is what the store logged.
type logs struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logs) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newRig(t testing.TB) *rig {
	l, err := linktest.NewLedger("c1")
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{TB: t, l: l, dir: t.TempDir(), logs: &logs{}, keep: 720 * time.Hour}
	capacity := muster.Resources{CPU: 64_000, Memory: 64 * muster.GiB}
	r.must(&state.FormatRaised{Format: state.FormatNewest})
	r.must(&state.NodeLaunching{ID: "n1", Token: "n1", Offering: muster.Offering{Capacity: capacity, Price: 64_000_000}})
	r.must(&state.NodeLaunched{ID: "n1", Instance: "n1"})
	r.must(&state.NodeJoined{ID: "n1", Capacity: capacity})
	return r
}

func (r *rig) must(f state.Fact) {
	r.Helper()
	if _, _, err := r.l.Propose(r.Context(), f); err != nil {
		r.Fatalf("%T: %v", f, err)
	}
}

// job submits a job and has its only member end with an exit code. It returns the job's uid.
func (r *rig) job(name string, code int) muster.JobUID {
	r.Helper()
	r.n++
	uid := muster.JobUID(fmt.Sprintf("u%d", r.n))
	spec := &api.JobSpec{Name: name, Template: api.Template{Command: []string{"sh", "-c", "exit"}}}
	spec.Defaults()
	r.must(&state.JobSubmitted{Key: muster.JobKey{Namespace: "default", Name: name}, UID: uid, Spec: spec})
	version := r.l.Latest().JobByUID(uid).Version
	r.must(&state.PlanCommitted{Placements: []state.Placement{{UID: uid, Version: version, Attempt: 1, Node: "n1"}}})
	end := state.AllocUpdate{ID: muster.NewAllocID(uid, 0, 1), Status: muster.AllocEnded, Outcome: muster.OutcomeSucceeded, CPU: muster.Time(r.used), PeakMemory: muster.Bytes(r.used)}
	if code != 0 {
		end.Outcome, end.ExitCode = muster.OutcomeFailed, code
		end.Failure = &muster.Failure{Class: muster.FailureUser, Reason: muster.ReasonExit, Message: "the command exited"}
	}
	r.must(&state.AllocsReported{Node: "n1", Allocs: []state.AllocUpdate{end}})
	return uid
}

func (r *rig) store() *Store {
	s, err := New(Config{State: r.l, Dir: r.dir, Clock: r.l.Now, Retention: func() time.Duration { return r.keep }, Logger: slog.New(slog.NewTextHandler(r.logs, nil))})
	if err != nil {
		r.Fatal(err)
	}
	return s
}

// run runs a store until stop is called.
func (r *rig) run() (s *Store, stop func()) {
	s = r.store()
	ctx, cancel := context.WithCancel(r.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	synctest.Wait()
	return s, func() {
		cancel()
		if err := <-done; err != nil {
			r.Error(err)
		}
	}
}

// settle waits until the store has written what the feed brought.
func (r *rig) settle(s *Store) {
	r.Helper()
	time.Sleep(2 * gather)
	synctest.Wait()
	if kept, last := s.Kept(), r.l.Latest().Index(); kept != last {
		r.Fatalf("kept up to %d of %d", kept, last)
	}
}

func (r *rig) list(s *Store, q Query) *api.History {
	r.Helper()
	if q.Limit == 0 {
		q.Limit = 100
	}
	out, err := s.List(&q)
	if err != nil {
		r.Fatal(err)
	}
	return out
}

func ids(h *api.History) string {
	var out []string
	for _, j := range h.Jobs {
		out = append(out, j.ID)
	}
	return strings.Join(out, " ")
}

// dump is all that a file holds, but for the position.
func (r *rig) dump(dir string) string {
	r.Helper()
	db, err := bolt.Open(filepath.Join(dir, FileName), 0o600, &bolt.Options{ReadOnly: true})
	if err != nil {
		r.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	var b strings.Builder
	err = db.View(func(tx *bolt.Tx) error {
		return tx.ForEach(func(name []byte, bucket *bolt.Bucket) error {
			return bucket.ForEach(func(k, v []byte) error {
				if string(k) != string(positionKey) {
					fmt.Fprintf(&b, "%s %q %x\n", name, k, v)
				}
				return nil
			})
		})
	})
	if err != nil {
		r.Fatal(err)
	}
	return b.String()
}

func TestJobsOfOneNameAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s, stop := r.run()
		defer stop()
		first := r.job("x", 3)
		time.Sleep(time.Second)
		second := r.job("x", 0)
		r.settle(s)
		r.must(&state.JobsPurged{UIDs: []muster.JobUID{first}})
		r.settle(s)
		got := r.list(s, Query{Name: "x"})
		if ids(got) != "u2 u1" || got.Next != "" {
			t.Fatalf("jobs %s, next %q", ids(got), got.Next)
		}
		if j := got.Jobs[1]; j.Status != "failed" || j.ExitCode == nil || *j.ExitCode != 3 || j.Attempts != 1 || j.Failed != 1 || j.Count != 1 {
			t.Errorf("the first job: %+v", j)
		}
		one, err := s.Show(&One{ID: string(second), Limit: 10})
		if err != nil || len(one.Attempts) != 1 || one.Attempts[0].ID != string(muster.NewAllocID(second, 0, 1)) || one.Attempts[0].Outcome != "succeeded" {
			t.Errorf("the second job: %+v, %v", one, err)
		}
	})
}

func TestWhatJobsUsedAndCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s, stop := r.run()
		defer stop()
		spec := &api.JobSpec{Name: "x", Count: 2, Template: api.Template{Command: []string{"true"}, Resources: api.ResourcesSpec{CPU: 2, Memory: api.Size(muster.GiB)}}}
		spec.Defaults()
		r.must(&state.JobSubmitted{Key: muster.JobKey{Namespace: "default", Name: "x"}, UID: "ux", Spec: spec})
		f, start, end := &state.PlanCommitted{}, &state.AllocsReported{Node: "n1"}, &state.AllocsReported{Node: "n1"}
		for i := range 2 {
			id := muster.NewAllocID("ux", i, 1)
			f.Placements = append(f.Placements, state.Placement{UID: "ux", Version: 1, Index: i, Attempt: 1, Node: "n1"})
			start.Allocs = append(start.Allocs, state.AllocUpdate{ID: id, Status: muster.AllocRunning, Started: r.l.Now()})
			end.Allocs = append(end.Allocs, state.AllocUpdate{ID: id, Status: muster.AllocEnded, Outcome: muster.OutcomeSucceeded})
		}
		r.must(f)
		r.must(start)
		time.Sleep(time.Hour)
		// What the second one used is not known.
		end.Allocs[0].CPU, end.Allocs[0].PeakMemory = muster.Time(time.Hour/time.Microsecond), 300*muster.MiB
		r.must(end)
		r.settle(s)
		j := r.list(s, Query{}).Jobs[0]
		if j.CPUSeconds != 3600 || j.CPUEfficiency < 0.49 || j.CPUEfficiency > 0.51 || j.PeakMemory != int64(300*muster.MiB) || j.MemoryRequested != int64(muster.GiB) {
			t.Errorf("used %+v", j)
		}
		// Each has a mean of 1/32 of the cores and 1/64 of the memory of a node of 64 an hour.
		if j.Cost < 2.99 || j.Cost > 3.01 || j.RunSeconds < 7199 || j.RunSeconds > 7201 {
			t.Errorf("cost %+v", j)
		}
	})
}

func TestFiltersOfTheList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s, stop := r.run()
		defer stop()
		r.job("a", 0)
		time.Sleep(time.Hour)
		middle := time.Now().UTC().Format(time.RFC3339)
		time.Sleep(time.Hour)
		r.job("ab", 1)
		r.settle(s)
		for _, c := range []struct {
			q    Query
			want string
		}{
			{Query{}, "u2 u1"},
			{Query{Namespace: "default"}, "u2 u1"},
			{Query{Namespace: "other"}, ""},
			{Query{Name: "a"}, "u1"},
			{Query{Name: "ab"}, "u2"},
			{Query{Namespace: "default", Name: "a", Status: "failed"}, ""},
			{Query{Status: "failed"}, "u2"},
			{Query{Since: middle}, "u2"},
			{Query{Until: middle}, "u1"},
			{Query{Name: "a", Since: middle}, ""},
		} {
			if got := ids(r.list(s, c.q)); got != c.want {
				t.Errorf("%+v: %q, want %q", c.q, got, c.want)
			}
		}
	})
}

func TestPagesAreStableWhileJobsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s, stop := r.run()
		defer stop()
		for range 7 {
			r.job("x", 0)
			time.Sleep(time.Second)
		}
		r.settle(s)
		for _, q := range []Query{{Limit: 3}, {Limit: 3, Name: "x"}, {Limit: 3, Namespace: "default"}} {
			first := r.list(s, Query{Limit: 1})
			var got []string
			for {
				page := r.list(s, q)
				got = append(got, strings.Fields(ids(page))...)
				if q.After = page.Next; page.Next == "" {
					break
				}
				r.job("x", 0)
				r.settle(s)
			}
			n := len(got)
			if n < 7 || got[0] != first.Jobs[0].ID || got[n-1] != "u1" {
				t.Errorf("pages %v", got)
			}
			for i, id := range got {
				if want := fmt.Sprintf("u%d", n-i); id != want {
					t.Errorf("pages %v: %s where %s should be", got, id, want)
				}
			}
		}
	})
}

func TestGarbageInAQueryNamesItsField(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s, stop := r.run()
		defer stop()
		for _, c := range []struct {
			q    Query
			want string
		}{
			{Query{After: "garbage"}, "query.after"},
			{Query{After: "-1.u1"}, "query.after"},
			{Query{After: "99999999999999999999.u1"}, "query.after"},
			{Query{After: "12."}, "query.after"},
			{Query{Since: "yesterday"}, "query.since"},
			{Query{Until: "2026-13-01T00:00:00Z"}, "query.until"},
		} {
			_, err := s.List(&c.q)
			var p *problem.Problem
			if !errors.As(err, &p) || p.Status != 422 || len(p.Errors) != 1 || p.Errors[0].Location != c.want {
				t.Errorf("%+v: %v", c.q, err)
			}
		}
		if _, err := s.Show(&One{ID: "u1", After: "x-1"}); !problem.IsInvalid(err) {
			t.Error(err)
		}
		if _, err := s.Show(&One{ID: "nobody"}); err == nil || problem.Of(err).Status != 404 {
			t.Error(err)
		}
	})
}

// A crash may come after any commit of the log and before the store wrote it.
func TestNothingIsLostByACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s, stop := r.run()
		r.job("x", 0)
		r.settle(s)
		stop()
		r.job("x", 1)
		r.job("y", 2)
		// Replayed from a snapshot, the feed has no changes: only the rows are there.
		if err := r.l.Keep(); err != nil {
			t.Fatal(err)
		}
		if err := r.l.Replay(); err != nil {
			t.Fatal(err)
		}
		s, stop = r.run()
		r.settle(s)
		if got := ids(r.list(s, Query{})); len(strings.Fields(got)) != 3 {
			t.Errorf("jobs %s", got)
		}
		stop()
	})
}

// A server that saw all changes, one that was off for some, and one that begins with the state have
// the same content, and doing it again changes nothing.
func TestEveryServerHasTheSameContent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		all, off, late := r.dir, t.TempDir(), t.TempDir()
		s, stop := r.run()
		r.dir = off
		_, stopOff := r.run()
		r.job("x", 1)
		r.settle(s)
		stopOff()
		for i := range 20 {
			r.job("x", i%3)
		}
		_, stopOff = r.run()
		r.job("z", 0)
		r.settle(s)
		stopOff()
		stop()
		r.dir = late
		for range 2 {
			s, stop = r.run()
			r.settle(s)
			stop()
		}
		want := r.dump(all)
		if strings.Count(want, "\n") < 22*6 {
			t.Fatalf("a dump of %d rows", strings.Count(want, "\n"))
		}
		if r.dump(off) != want {
			t.Error("a server that was off for a while has another content")
		}
		if r.dump(late) != want {
			t.Error("a server that begins with the state has another content")
		}
	})
}

func TestARestoredBackupIsReadWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s, stop := r.run()
		r.job("x", 0)
		for range 10 {
			r.job("later", 0)
		}
		r.settle(s)
		stop()
		// The backup is older than the file, and goes on differently.
		old := newRig(t)
		old.job("x", 0)
		old.n = 100
		old.job("other", 5)
		old.must(&state.EpochBegan{Epoch: 77})
		r.l = old.l
		s, stop = r.run()
		defer stop()
		r.settle(s)
		if got := ids(r.list(s, Query{Name: "other"})); got != "u101" {
			t.Errorf("jobs %q", got)
		}
		if got := r.list(s, Query{Name: "x"}); len(got.Jobs) != 1 || got.Jobs[0].Attempts != 1 {
			t.Errorf("jobs %+v", got)
		}
	})
}

func TestPruneByAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.keep = 24 * time.Hour
		s, stop := r.run()
		r.job("x", 0)
		time.Sleep(20 * time.Hour)
		r.job("x", 0)
		time.Sleep(4*time.Hour + 2*pruneEvery)
		synctest.Wait()
		if got := ids(r.list(s, Query{})); got != "u2" {
			t.Errorf("jobs %s", got)
		}
		r.must(&state.JobsPurged{UIDs: []muster.JobUID{"u1", "u2"}})
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		stop()
		if got := r.dump(r.dir); got != "" {
			t.Errorf("left: %s", got)
		}
	})
}

func TestADamagedFileIsSetAside(t *testing.T) {
	damages := map[string]func(b []byte) []byte{
		"empty":       func([]byte) []byte { return []byte{} },
		"not a store": func([]byte) []byte { return []byte(strings.Repeat("x", 100_000)) },
		"short":       func([]byte) []byte { return []byte(strings.Repeat("x", 5_000)) },
		"cut":         func(b []byte) []byte { return b[:len(b)/2] },
		"no meta":     func(b []byte) []byte { clear(b[:2*os.Getpagesize()]); return b },
		"no pages":    func(b []byte) []byte { clear(b[2*os.Getpagesize():]); return b },
	}
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				s, stop := r.run()
				for range 30 {
					r.job("x", 0)
				}
				r.settle(s)
				stop()
				path := filepath.Join(r.dir, FileName)
				b, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, damage(b), 0o600); err != nil {
					t.Fatal(err)
				}
				s, stop = r.run()
				defer stop()
				r.job("x", 0)
				r.settle(s)
				if got := ids(r.list(s, Query{})); len(strings.Fields(got)) != 31 {
					t.Errorf("jobs %s\n%s", got, r.logs)
				}
				if _, err := os.Stat(path + ".damaged"); name != "empty" && (err != nil || !strings.Contains(r.logs.String(), "the history file is damaged")) {
					t.Errorf("%v\n%s", err, r.logs)
				}
			})
		})
	}
}

// A page that is damaged while the server runs is found by a request.
func TestADamageThatARequestFinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s, stop := r.run()
		defer stop()
		r.job("x", 0)
		r.settle(s)
		err := s.update(func(tx *bolt.Tx) error {
			k, _ := tx.Bucket(jobsBucket).Cursor().First()
			return tx.Bucket(jobsBucket).Put(bytes.Clone(k), []byte("garbage"))
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.List(&Query{Limit: 1}); err == nil || problem.Of(err).Status != 503 {
			t.Error(err)
		}
		r.settle(s)
		if got := ids(r.list(s, Query{})); got != "u1" {
			t.Errorf("jobs %s", got)
		}
	})
}

func TestAStoreThatCannotBeWritten(t *testing.T) {
	if _, err := (*Store)(nil).List(&Query{}); problem.Of(err).Status != 503 {
		t.Error(err)
	}
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		path := filepath.Join(r.dir, FileName)
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		s, stop := r.run()
		defer stop()
		r.job("x", 0)
		time.Sleep(time.Minute)
		synctest.Wait()
		if s.Kept() != 0 {
			t.Error("rows may be forgotten that are nowhere else")
		}
		if _, err := s.List(&Query{}); err == nil || problem.Of(err).Status != 503 {
			t.Error(err)
		}
		if n := strings.Count(r.logs.String(), "the history is not written"); n != 1 {
			t.Errorf("said %d times:\n%s", n, r.logs)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * retryAfter)
		r.settle(s)
		if got := ids(r.list(s, Query{})); got != "u1" {
			t.Errorf("jobs %s", got)
		}
	})
}
