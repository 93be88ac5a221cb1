package raftlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/musterhq/muster/internal/testwait"
)

func TestProposeAnswersEachWithItsOwn(t *testing.T) {
	m := &recorder{}
	r := start(t, small(t.TempDir(), m))
	var wg sync.WaitGroup
	var mu sync.Mutex
	at := make(map[int]string) // the recorder answers with the position
	for w := range 20 {
		wg.Go(func() {
			for i := range 30 {
				s := fmt.Sprintf("%d-%d", w, i)
				res, err := r.Propose(t.Context(), []byte(s))
				if err != nil {
					t.Errorf("%s: %v", s, err)
					return
				}
				mu.Lock()
				at[res.Value.(int)] = s
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	all := m.list()
	if len(all) != 600 || len(at) != 600 {
		t.Fatalf("%d applied, %d answers, want 600", len(all), len(at))
	}
	for i, s := range all {
		if at[i+1] != s {
			t.Fatalf("position %d holds %q, and %q was told so", i+1, s, at[i+1])
		}
	}
	if index, _, _ := m.seen(); r.Applied() != index {
		t.Errorf("Applied() = %d, the machine saw %d", r.Applied(), index)
	}
	r.mustStop(t)
	if m.backAt || m.backIdx {
		t.Error("time or index went backwards")
	}
}

func TestMachineErrorIsTheProposersOnly(t *testing.T) {
	r := start(t, small(t.TempDir(), &recorder{}))
	res, err := r.Propose(t.Context(), []byte(refuse))
	if !errors.Is(err, errRefused) || res.Index == 0 {
		t.Errorf("got %+v, %v; want the machine's error and an index", res, err)
	}
	r.mustPropose(t, "fine")
}

func TestTooLarge(t *testing.T) {
	m := &recorder{}
	r := start(t, small(t.TempDir(), m))
	if _, err := r.Propose(t.Context(), make([]byte, MaxProposal+1)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("got %v", err)
	}
	if _, err := r.Propose(t.Context(), make([]byte, MaxProposal)); err != nil {
		t.Errorf("the largest proposal: %v", err)
	}
	if n := len(m.list()); n != 1 {
		t.Errorf("%d applied", n)
	}
}

// stuck is a running log whose disk stands still from now on.
type stuck struct {
	*running
	mu      sync.Mutex
	hold    chan struct{}
	waiting chan struct{}
}

func startStuck(t *testing.T, c Config) *stuck {
	s := &stuck{}
	c.Fault = func(op Op, _ string) error {
		if op != OpSync {
			return nil
		}
		s.mu.Lock()
		hold, waiting := s.hold, s.waiting
		s.mu.Unlock()
		if hold != nil {
			select {
			case waiting <- struct{}{}:
			case <-hold:
			}
			<-hold
		}
		return nil
	}
	s.running = start(t, c)
	if err := s.Barrier(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.hold, s.waiting = make(chan struct{}), make(chan struct{})
	s.mu.Unlock()
	t.Cleanup(s.release)
	return s
}

func (s *stuck) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hold != nil {
		close(s.hold)
		s.hold = nil
	}
}

func (s *stuck) gathered() int {
	s.gather.mu.Lock()
	defer s.gather.mu.Unlock()
	n := 0
	for _, b := range s.gather.waiting {
		n += len(b.items)
	}
	return n
}

func TestGroupCommit(t *testing.T) {
	m := &recorder{}
	s := startStuck(t, small(t.TempDir(), m))
	before := s.Applied()
	var wg sync.WaitGroup
	propose := func(i int) {
		wg.Go(func() {
			if _, err := s.Propose(t.Context(), []byte(name(i))); err != nil {
				t.Error(err)
			}
		})
	}
	propose(0)
	<-s.waiting // the first is at the disk
	for i := 1; i <= 100; i++ {
		propose(i)
	}
	testwait.Until(t, "all others are gathered", func() bool { return s.gathered() == 100 })
	s.release()
	wg.Wait()
	if entries := s.Applied() - before; entries != 2 {
		t.Errorf("101 proposals took %d entries, want 2", entries)
	}
	if len(m.list()) != 101 {
		t.Errorf("%d applied", len(m.list()))
	}
}

func TestEntryLimits(t *testing.T) {
	s := startStuck(t, small(t.TempDir(), &recorder{}))
	before := s.Applied()
	var wg sync.WaitGroup
	propose := func(p []byte) {
		wg.Go(func() {
			if _, err := s.Propose(t.Context(), p); err != nil {
				t.Error(err)
			}
		})
	}
	propose([]byte("first"))
	<-s.waiting
	const n = 2*maxEntryProposals + 10
	for i := range n {
		propose([]byte(name(i)))
	}
	testwait.Until(t, "the small ones are gathered", func() bool { return s.gathered() == n })
	for range 3 {
		propose(make([]byte, maxEntryBytes/2+1))
	}
	testwait.Until(t, "all are gathered", func() bool { return s.gathered() == n+3 })
	s.release()
	wg.Wait()
	// The first; two full ones; the other small ones with a large one; and no
	// two large ones fit into one.
	if entries := s.Applied() - before; entries != 6 {
		t.Errorf("%d entries, want 6", entries)
	}
}

func TestCallerGivesUp(t *testing.T) {
	m := &recorder{}
	s := startStuck(t, small(t.TempDir(), m))
	ctx, cancel := context.WithCancel(t.Context())
	results := make(chan error, 2)
	go func() { _, err := s.Propose(ctx, []byte("at the disk")); results <- err }()
	<-s.waiting
	go func() { _, err := s.Propose(ctx, []byte("still here")); results <- err }()
	testwait.Until(t, "the second is gathered", func() bool { return s.gathered() == 1 })
	cancel()
	var ambiguous, withdrawn int
	for range 2 {
		err := <-results
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		if errors.Is(err, ErrAmbiguous) {
			ambiguous++
		} else {
			withdrawn++
		}
	}
	if ambiguous != 1 || withdrawn != 1 {
		t.Errorf("%d ambiguous, %d withdrawn; want 1 and 1", ambiguous, withdrawn)
	}
	s.release()
	if err := s.Barrier(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := m.list(); !slices.Equal(got, []string{"at the disk"}) {
		t.Errorf("applied %q: what was withdrawn must not be there", got)
	}
	if _, err := s.Propose(ctx, []byte("late")); !errors.Is(err, context.Canceled) || errors.Is(err, ErrAmbiguous) {
		t.Errorf("with a context that ended: %v", err)
	}
}

func TestStopAnswersEverybody(t *testing.T) {
	dir := t.TempDir()
	m := &recorder{}
	s := startStuck(t, small(dir, m))
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { _, err := s.Propose(t.Context(), []byte("on its way")); first <- err }()
	<-s.waiting
	go func() { _, err := s.Propose(t.Context(), []byte("waiting")); second <- err }()
	testwait.Until(t, "the second is gathered", func() bool { return s.gathered() == 1 })
	s.cancel()
	if err := <-second; !errors.Is(err, ErrStopping) || errors.Is(err, ErrAmbiguous) {
		t.Errorf("who waited was told %v", err)
	}
	s.release()
	if err := <-first; err != nil {
		t.Errorf("what was on its way: %v", err)
	}
	s.mustStop(t)
	if _, err := s.Propose(t.Context(), []byte("after")); !errors.Is(err, ErrStopping) {
		t.Errorf("after the end: %v", err)
	}
	if err := s.Barrier(t.Context()); !errors.Is(err, ErrStopping) {
		t.Errorf("barrier after the end: %v", err)
	}
	again := &recorder{}
	r := start(t, small(dir, again))
	if err := r.Barrier(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := again.list(); !slices.Equal(got, []string{"on its way"}) {
		t.Errorf("after a restart: %q", got)
	}
}

func TestRestartReplays(t *testing.T) {
	dir := t.TempDir()
	var want []string
	var at int64
	var term uint64
	for round := range 4 {
		m := &recorder{}
		r := start(t, small(dir, m))
		if err := r.Barrier(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := m.list(); !slices.Equal(got, want) {
			t.Fatalf("round %d: %d proposals, want %d", round, len(got), len(want))
		}
		_, newTerm, newAt := m.seen()
		if newAt < at {
			t.Errorf("time went back over a restart")
		}
		if newTerm <= term {
			t.Errorf("term %d after %d", newTerm, term)
		}
		for i := range 50 {
			s := name(round*100 + i)
			want = append(want, s)
			r.mustPropose(t, s)
			if i == 25 && round%2 == 0 {
				if err := r.Snapshot(); err != nil {
					t.Fatal(err)
				}
			}
		}
		r.mustStop(t)
		_, term, at = m.seen()
	}
}

func TestLeadsAtOnce(t *testing.T) {
	dir := t.TempDir()
	best := time.Hour
	for i := range 6 {
		began := time.Now()
		r := start(t, Config{Dir: dir, Machine: &recorder{}, Fatal: func(error) {}})
		if err := r.Barrier(t.Context()); err != nil {
			t.Fatal(err)
		}
		took := time.Since(began)
		t.Logf("open %d: first entry after %v", i, took)
		best = min(best, took)
		r.mustStop(t)
	}
	if best > 100*time.Millisecond {
		t.Errorf("the best of 6 took %v", best)
	}
}

func TestQuiet(t *testing.T) {
	var mu sync.Mutex
	var out bytes.Buffer
	c := small(t.TempDir(), nil)
	c.Logger = slog.New(slog.NewTextHandler(locked{&mu, &out}, nil))
	for range 3 {
		c.Machine = &recorder{}
		r := start(t, c)
		r.mustPropose(t, "x")
		if err := r.Snapshot(); err != nil {
			t.Fatal(err)
		}
		r.mustPropose(t, "y")
		r.mustStop(t)
	}
	mu.Lock()
	defer mu.Unlock()
	if out.Len() > 0 {
		t.Errorf("a life without trouble was logged at Info:\n%s", out.String())
	}
}

type locked struct {
	mu *sync.Mutex
	b  *bytes.Buffer
}

func (l locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l locked) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestLoggerLevels(t *testing.T) {
	for _, c := range []struct {
		level hclog.Level
		alone bool
		want  slog.Level
	}{
		{hclog.Trace, false, slog.LevelDebug - 4},
		{hclog.Info, false, slog.LevelDebug},
		{hclog.Warn, true, slog.LevelDebug},
		{hclog.Warn, false, slog.LevelWarn},
		{hclog.Error, true, slog.LevelError},
	} {
		var b bytes.Buffer
		to := slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{Level: slog.LevelDebug - 8}))
		h := (&hcLogger{to: to, name: "raft", alone: c.alone}).With("k", 1).Named("sub")
		h.Log(c.level, "hello", "n", 2)
		for _, want := range []string{"level=" + c.want.String(), `msg="raft.sub: hello"`, "k=1", "n=2"} {
			if !strings.Contains(b.String(), want) {
				t.Errorf("%v alone=%v: %q lacks %q", c.level, c.alone, b.String(), want)
			}
		}
	}
}

func TestDiskMarks(t *testing.T) {
	c := small(t.TempDir(), &recorder{})
	var mark uint64
	var mu sync.Mutex
	c.LowWater = func(uint64) uint64 { mu.Lock(); defer mu.Unlock(); return mark }
	r := start(t, c)
	u, err := r.Disk()
	if err != nil || u.Total == 0 || u.Free == 0 {
		t.Fatalf("%+v, %v", u, err)
	}
	set := func(m uint64) {
		mu.Lock()
		mark = m
		mu.Unlock()
		r.disk.mu.Lock()
		r.disk.seen = time.Time{}
		r.disk.mu.Unlock()
	}
	try := func(what string, full, low, tight bool) {
		t.Helper()
		if u, err := r.Disk(); err != nil || r.DiskLow() != low || u.Tight() != tight {
			t.Errorf("%s: low %v, %+v, %v", what, r.DiskLow(), u, err)
		}
		_, err := r.ProposeUser(t.Context(), []byte("user"))
		if low != errors.Is(err, ErrDiskLow) || !low && err != nil {
			t.Errorf("%s: a user's write: %v", what, err)
		}
		_, err = r.ProposeFreeing(t.Context(), []byte("stop"))
		if full != errors.Is(err, ErrDiskLow) || !full && err != nil {
			t.Errorf("%s: a user's stop: %v", what, err)
		}
		if _, err := r.Propose(t.Context(), []byte("own")); err != nil {
			t.Errorf("%s: an own fact: %v", what, err)
		}
	}
	set(0)
	try("no mark", false, false, false)
	set(u.Free * 4 / 5)
	try("near the mark", false, false, true)
	set(u.Free * 2)
	try("below the mark", false, true, true)
	set(u.Total * 16)
	try("full", true, true, true)
	set(0)
	try("room again", false, false, false)

	if got := defaultLowWater(40 << 30); got != 2<<30 {
		t.Errorf("mark of 40 GiB: %d", got)
	}
	if got := defaultLowWater(1 << 40); got != 4<<30 {
		t.Errorf("mark of 1 TiB: %d", got)
	}
	if got := defaultLowWater(10 << 30); got != 1<<30 {
		t.Errorf("mark of 10 GiB: %d", got)
	}
}

func TestDirectoryStaysBounded(t *testing.T) {
	dir := t.TempDir()
	m := &forgetful{}
	c := small(dir, m)
	c.SegmentSize = 64 << 10
	c.SnapshotEvery = 200
	r := start(t, c)
	var high int64
	payload := bytes.Repeat([]byte("x"), 500)
	for i := range 6000 {
		if _, err := r.Propose(t.Context(), payload); err != nil {
			t.Fatal(err)
		}
		if i%100 == 0 {
			high = max(high, sizeOf(t, dir))
		}
	}
	// 3 MB went through. Two snapshot intervals of log are 200 kB, and segments
	// go as a whole.
	t.Logf("the directory was at most %d kB", high>>10)
	if high > 1<<20 {
		t.Errorf("the directory grew to %d bytes", high)
	}
	r.mustStop(t)
	c.Machine = &forgetful{}
	start(t, c).mustStop(t)
}

// forgetful is a machine whose state does not grow.
type forgetful struct{ blank }

func sizeOf(t *testing.T, dir string) (n int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || e.IsDir() {
			return err
		}
		if i, err := e.Info(); err == nil {
			n += i.Size()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestLargeStateIsNotWrittenForEverySmallEntry(t *testing.T) {
	for _, c := range []struct {
		n, bytes, size uint64
		want           bool
	}{
		{n: 99, bytes: 1, size: 0, want: false},
		{n: 100, bytes: 1, size: 0, want: true},
		{n: 1, bytes: 1000, size: 0, want: true},
		{n: 100, bytes: 900, size: 5000, want: false},
		{n: 1, bytes: 4999, size: 5000, want: false},
		{n: 1, bytes: 5000, size: 5000, want: true},
		{n: 800, bytes: 1, size: 5000, want: true},
	} {
		d := &driver{every: 100, bytes: 1000, size: func() uint64 { return c.size }, sinceN: c.n, sinceBytes: c.bytes}
		if got := d.dueLocked(); got != c.want {
			t.Errorf("%+v: due %v", c, got)
		}
	}
}

func TestCloseWithoutRun(t *testing.T) {
	dir := t.TempDir()
	for range 3 {
		l, err := Open(small(dir, &recorder{}))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Propose(t.Context(), nil); !errors.Is(err, ErrNotLeader) {
			t.Errorf("before Run: %v", err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if err := l.Run(t.Context()); err == nil {
			t.Error("Run after Close")
		}
	}
	r := start(t, small(dir, &recorder{}))
	r.mustPropose(t, "x")
}

// In a bubble, as the simulator runs it: the clock moves only when all wait.
func TestInBubble(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		m := &recorder{}
		r := start(t, small(dir, m))
		one := r.mustPropose(t, "one")
		_, _, first := m.seen()
		time.Sleep(time.Hour)
		two := r.mustPropose(t, "two")
		_, _, second := m.seen()
		if d := time.Duration(second-first) * time.Microsecond; d < time.Hour || d > time.Hour+time.Minute {
			t.Errorf("an hour was %v", d)
		}
		if one.Index >= two.Index {
			t.Errorf("index %d after %d", two.Index, one.Index)
		}
		r.mustStop(t)
	})
}
