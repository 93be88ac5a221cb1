package raftlog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/musterhq/muster/internal/testwait"
)

func TestLeadAlone(t *testing.T) {
	dir := t.TempDir()
	var terms []uint64
	for range 3 {
		m := &recorder{}
		r := startFollower(t, small(dir, m))
		ctx, cancel := context.WithCancel(t.Context())
		began := make(chan uint64)
		over := make(chan error)
		go func() {
			over <- r.Lead(ctx, func(ctx context.Context, term uint64) error {
				if _, seen, _ := m.seen(); seen != term {
					t.Errorf("term %d, and the machine has seen %d", term, seen)
				}
				began <- term
				<-ctx.Done()
				return ctx.Err()
			})
		}()
		terms = append(terms, <-began)
		cancel()
		if err := <-over; err != nil {
			t.Errorf("its context ended: %v", err)
		}
		r.mustStop(t)
	}
	if !slices.IsSorted(terms) || terms[0] == terms[2] {
		t.Errorf("terms %v", terms)
	}
}

func TestLeadEnds(t *testing.T) {
	r := start(t, small(t.TempDir(), &recorder{}))
	boom := errors.New("boom")
	if err := r.Lead(t.Context(), func(context.Context, uint64) error { return boom }); !errors.Is(err, boom) {
		t.Errorf("its error: %v", err)
	}
	var calls atomic.Int64
	err := r.Lead(t.Context(), func(context.Context, uint64) error {
		if calls.Add(1) < 3 {
			return fmt.Errorf("somebody else leads: %w", ErrNotLeader)
		}
		return boom
	})
	if !errors.Is(err, boom) || calls.Load() != 3 {
		t.Errorf("%d calls, %v", calls.Load(), err)
	}

	over := make(chan error, 2)
	var cause atomic.Value
	go func() {
		over <- r.Lead(t.Context(), func(ctx context.Context, _ uint64) error {
			r.cancel()
			<-ctx.Done()
			cause.Store(context.Cause(ctx))
			return nil
		})
	}()
	go func() { // returns at once and is not called again
		over <- r.Lead(t.Context(), func(context.Context, uint64) error { return nil })
	}()
	for range 2 {
		if err := <-over; !errors.Is(err, ErrStopping) {
			t.Errorf("the log stopped: %v", err)
		}
	}
	if err, _ := cause.Load().(error); !errors.Is(err, ErrStopping) {
		t.Errorf("cause %v", err)
	}
}

func TestAmbiguousIsNothingElse(t *testing.T) {
	for _, cause := range []error{ErrNotLeader, ErrStopping, fmt.Errorf("x: %w", ErrNotLeader)} {
		err := ambiguous(cause)
		if !errors.Is(err, ErrAmbiguous) || errors.Is(err, ErrNotLeader) || errors.Is(err, ErrStopping) || !strings.Contains(err.Error(), cause.Error()) {
			t.Errorf("%v", err)
		}
	}
	if err := ambiguous(context.Canceled); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestLeadOverAFailingDisk(t *testing.T) {
	var broken atomic.Bool
	c := small(t.TempDir(), &recorder{})
	c.Fault = func(op Op, _ string) error {
		if op == OpSync && broken.Load() {
			return errors.New("broken")
		}
		return nil
	}
	r := start(t, c)
	err := r.Lead(t.Context(), func(ctx context.Context, _ uint64) error {
		broken.Store(true)
		_, err := r.Propose(ctx, []byte("x"))
		var storage *StorageError
		if !errors.As(err, &storage) || !errors.Is(err, ErrAmbiguous) {
			t.Errorf("the proposal at the disk: %v", err)
		}
		<-ctx.Done()
		return ctx.Err()
	})
	var storage *StorageError
	if !errors.As(err, &storage) {
		t.Errorf("Lead: %v", err)
	}
	if err := r.stop(); !errors.As(err, &storage) {
		t.Errorf("Run: %v", err)
	}
}

// trio is three servers in one process.
type trio struct {
	t          testing.TB
	transports []*raft.InmemTransport
	servers    []raft.Server
	dirs       []string
	nodes      []*running
}

func startTrio(t testing.TB) *trio {
	t.Helper()
	g := &trio{t: t, nodes: make([]*running, 3)}
	for i := range 3 {
		id := fmt.Sprintf("n%d", i)
		addr, tr := raft.NewInmemTransportWithTimeout(raft.ServerAddress(id), 200*time.Millisecond)
		g.transports = append(g.transports, tr)
		g.servers = append(g.servers, raft.Server{ID: raft.ServerID(id), Address: addr})
		g.dirs = append(g.dirs, t.TempDir())
	}
	for i := range 3 {
		g.connect(i)
	}
	for i := range 3 {
		g.start(i)
	}
	return g
}

func (g *trio) connect(i int) {
	for j := range 3 {
		if i != j {
			g.transports[i].Connect(g.transports[j].LocalAddr(), g.transports[j])
			g.transports[j].Connect(g.transports[i].LocalAddr(), g.transports[i])
		}
	}
}

func (g *trio) cut(i int) {
	g.transports[i].DisconnectAll()
	for j := range 3 {
		if i != j {
			g.transports[j].Disconnect(g.transports[i].LocalAddr())
		}
	}
}

func (g *trio) start(i int) {
	c := small(g.dirs[i], &recorder{})
	c.SegmentSize = 16 << 10
	c.SnapshotEvery = 50
	c.SnapshotBytes = 16 << 10
	c.Cluster = &Cluster{self: g.servers[i].ID, Servers: g.servers, Transport: keepOpen{g.transports[i]}, Heartbeat: 200 * time.Millisecond, Term: g.term}
	g.nodes[i] = startFollower(g.t, c)
}

// term answers for a server at once, whether it is cut off or not.
func (g *trio) term(_ context.Context, m Member) (uint64, error) {
	for i, s := range g.servers {
		if string(s.ID) == m.ID {
			return g.nodes[i].Term(), nil
		}
	}
	return 0, ErrNoMember
}

// keepOpen outlives the server that it is lent to.
type keepOpen struct{ raft.Transport }

func (g *trio) leader(but int) int {
	g.t.Helper()
	found := -1
	testwait.Until(g.t, "one of them leads", func() bool {
		for i, n := range g.nodes {
			if i != but && n.IsLeader() && n.Barrier(context.Background()) == nil {
				found = i
				return true
			}
		}
		return false
	})
	return found
}

// propose with whoever leads until it is known to be committed.
func (g *trio) propose(s string) {
	g.t.Helper()
	testwait.Until(g.t, s, func() bool {
		for _, n := range g.nodes {
			if _, err := n.Propose(context.Background(), []byte(s)); err == nil {
				return true
			}
		}
		return false
	})
}

// lives counts how often and for how long each server's function ran.
type lives struct {
	mu    sync.Mutex
	terms []uint64
	live  int
}

func (l *lives) lead(ctx context.Context, term uint64) error {
	l.mu.Lock()
	l.terms = append(l.terms, term)
	l.live++
	l.mu.Unlock()
	<-ctx.Done()
	l.mu.Lock()
	l.live--
	l.mu.Unlock()
	return ctx.Err()
}

// is says whether n have begun and one lives.
func (l *lives) is(n int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.terms) >= n && l.live == 1
}

func TestThreeServersHandOver(t *testing.T) {
	g := startTrio(t)
	var l lives
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for _, n := range g.nodes {
		wg.Go(func() { _ = n.Lead(ctx, l.lead) })
	}
	first := g.leader(-1)
	testwait.Until(t, "somebody leads", func() bool { return l.is(1) })
	follower := g.nodes[(first+1)%3]
	if _, err := follower.Propose(t.Context(), []byte("x")); !errors.Is(err, ErrNotLeader) || errors.Is(err, ErrAmbiguous) {
		t.Errorf("a proposal to a follower: %v", err)
	}
	g.propose("one")

	// Handed over: the old one's function ends, the new one's begins.
	if err := g.nodes[first].raft.LeadershipTransfer().Error(); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "another leads", func() bool { return l.is(2) })
	g.propose("two")

	// Cut off: it gives up by itself, and what it had on its way is ambiguous.
	old := g.leader(-1)
	stuck := make(chan error, 1)
	g.cut(old)
	go func() { _, err := g.nodes[old].Propose(context.Background(), []byte("perhaps")); stuck <- err }()
	if next := g.leader(old); next == old {
		t.Error("it leads though it is cut off")
	}
	if err := <-stuck; errors.Is(err, ErrAmbiguous) == errors.Is(err, ErrNotLeader) { // one, not both
		t.Errorf("on its way when it was cut off: %v", err)
	}
	testwait.Until(t, "the old one's function has ended", func() bool { return l.is(3) })
	g.propose("three")
	cancel()
	wg.Wait()
	for i := 1; i < len(l.terms); i++ {
		if l.terms[i] <= l.terms[i-1] {
			t.Errorf("terms do not grow: %v", l.terms)
		}
	}
	// A leader without followers can stop, whatever it has on its way.
	last := g.leader(-1)
	for i := range g.nodes {
		g.cut(i)
	}
	go func() { _, err := g.nodes[last].Propose(context.Background(), []byte("perhaps")); stuck <- err }()
	g.nodes[last].mustStop(t)
	if err := <-stuck; err == nil {
		t.Error("confirmed without a majority")
	}
}

func TestThreeServersCatchUp(t *testing.T) {
	g := startTrio(t)
	g.propose("one")
	behind := (g.leader(-1) + 1) % 3
	g.cut(behind)
	for i := range 400 { // so far that it needs a snapshot
		g.propose(strings.Repeat("x", 300) + name(i))
	}
	g.connect(behind)
	g.propose("two")
	var want []string
	testwait.Until(t, "all have the same", func() bool {
		want = g.nodes[g.leader(-1)].machine.list()
		for _, n := range g.nodes {
			if !slices.Equal(n.machine.list(), want) {
				return false
			}
		}
		return slices.Contains(want, "two")
	})
	if g.nodes[behind].machine.restored() == 0 {
		t.Error("it caught up without a snapshot, and should have needed one")
	}
	if want[0] != "one" || len(want) < 402 {
		t.Errorf("%d proposals, the first %.10q", len(want), want[0])
	}
	// It restarts from its own disk.
	g.nodes[behind].mustStop(t)
	g.start(behind)
	g.propose("three")
	testwait.Until(t, "it has all", func() bool { return slices.Contains(g.nodes[behind].machine.list(), "three") })
	if got := g.nodes[behind].machine.list(); !slices.Equal(got[:len(want)], want) {
		t.Error("it has something else than before")
	}
}

// Three servers in a bubble, as the simulator will have them.
func TestThreeServersInBubble(t *testing.T) {
	dirs := []string{t.TempDir(), t.TempDir(), t.TempDir()}
	synctest.Test(t, func(t *testing.T) {
		g := &trio{t: t, nodes: make([]*running, 3), dirs: dirs}
		for i := range 3 {
			addr, tr := raft.NewInmemTransportWithTimeout(raft.ServerAddress(fmt.Sprintf("n%d", i)), 200*time.Millisecond)
			g.transports = append(g.transports, tr)
			g.servers = append(g.servers, raft.Server{ID: raft.ServerID(addr), Address: addr})
		}
		for i := range 3 {
			g.connect(i)
		}
		for i := range 3 {
			g.start(i)
		}
		for round := range 5 {
			lead := g.leader(-1)
			g.propose(fmt.Sprint(round))
			g.cut(lead)
			other := g.leader(lead)
			g.connect(lead)
			if other == lead {
				t.Errorf("round %d: %d leads though it is cut off", round, lead)
			}
		}
		for _, n := range g.nodes {
			n.mustStop(t)
		}
	})
}
