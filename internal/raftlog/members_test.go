package raftlog

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/musterhq/muster/internal/peers"
	"github.com/musterhq/muster/internal/testwait"
)

// peer is a server with a real port, whose log is on disk.
type peer struct {
	*running
	t         testing.TB
	authority *peers.Authority
	config    func(*peer) Config
	dir       string
	address   string // kept over restarts
	id        string
	stopNode  func()
}

func newPeer(t testing.TB, a *peers.Authority) *peer {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return &peer{t: t, authority: a, config: func(p *peer) Config { return compact(p.dir) }, dir: t.TempDir(), address: ln.Addr().String()}
}

// compact takes snapshots so often that whoever joins needs one.
func compact(dir string) Config {
	c := small(dir, &recorder{})
	c.SegmentSize, c.SnapshotEvery, c.SnapshotBytes = 16<<10, 50, 16<<10
	return c
}

// start opens its log among others.
func (p *peer) start() {
	p.t.Helper()
	var err error
	if p.id, err = ServerID(p.dir); err != nil {
		p.t.Fatal(err)
	}
	identity, err := peers.NewIdentity(p.authority, p.id, time.Now())
	if err != nil {
		p.t.Fatal(err)
	}
	ln, err := net.Listen("tcp", p.address)
	if err != nil {
		p.t.Fatal(err)
	}
	node := peers.New(peers.Config{Identity: identity, Listener: ln, Address: p.address})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- node.Run(ctx) }()
	p.stopNode = func() {
		cancel()
		if err := <-done; err != nil {
			p.t.Error(err)
		}
	}
	c := compact(p.dir)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
		return node.DialHTTP(ctx, address, "")
	}}}
	c.Cluster = &Cluster{
		Address: raft.ServerAddress(p.address), Transport: NewTransport(node.Log(), nil), Heartbeat: time.Second,
		Term: func(ctx context.Context, m Member) (term uint64, err error) {
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+m.Address, nil)
			if err != nil {
				return 0, err
			}
			res, err := client.Do(r)
			if err != nil {
				return 0, err
			}
			defer res.Body.Close()
			_, err = fmt.Fscan(res.Body, &term)
			return term, err
		},
	}
	p.running = startFollower(p.t, c)
	p.t.Cleanup(p.stop)
	go func() {
		_ = http.Serve(node.HTTP(), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, p.Term()) }))
	}()
}

// join prepares an empty directory and starts.
func (p *peer) join() {
	p.t.Helper()
	if _, err := SetJoining(p.dir); err != nil {
		p.t.Fatal(err)
	}
	p.start()
}

// stop ends it; it may be started again.
func (p *peer) stop() {
	if p.stopNode == nil {
		return
	}
	p.mustStop(p.t)
	p.stopNode()
	p.stopNode = nil
}

// lead runs an empty leader's function, which commits the entry that a leadership begins with.
func (p *peer) lead() {
	go func() {
		_ = p.Lead(context.Background(), func(ctx context.Context, _ uint64) error { <-ctx.Done(); return nil })
	}()
}

// caughtUp waits until p has what the leader among ps has.
func caughtUp(t testing.TB, ps []*peer, p *peer) {
	t.Helper()
	var index uint64
	byLeader(t, ps, func(l *peer) (err error) {
		index, err = l.ReadIndex(t.Context())
		return err
	})
	if err := p.Wait(t.Context(), index); err != nil {
		t.Fatal(err)
	}
}

func authority(t testing.TB) *peers.Authority {
	t.Helper()
	a, err := peers.Found(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// three are servers that have come together one by one, each with a configuration of its own if that is
// said.
func three(t testing.TB, config ...func(*peer) Config) []*peer {
	t.Helper()
	a := authority(t)
	ps := []*peer{newPeer(t, a), newPeer(t, a), newPeer(t, a)}
	for _, p := range ps {
		for _, c := range config {
			p.config = c
		}
	}
	ps[0].start()
	ps[0].lead()
	testwait.Until(t, "the first leads", ps[0].IsLeader)
	for _, p := range ps[1:] {
		p.join()
		p.lead()
		admit(t, ps, p)
	}
	return ps
}

// leaderOf is the one that leads, among those that run.
func leaderOf(t testing.TB, ps []*peer) *peer {
	t.Helper()
	var leader *peer
	testwait.Until(t, "one of them leads", func() bool {
		for _, p := range ps {
			if p.stopNode != nil && p.IsLeader() && p.Barrier(context.Background()) == nil {
				leader = p
				return true
			}
		}
		return false
	})
	return leader
}

// byLeader has the leader do something, again if leadership goes elsewhere meanwhile: on a busy machine it
// may at any time.
func byLeader(t testing.TB, ps []*peer, f func(leader *peer) error) {
	t.Helper()
	testwait.Until(t, "a leader does it", func() bool {
		err := f(leaderOf(t, ps))
		if err != nil && !errors.Is(err, ErrNotLeader) && !errors.Is(err, ErrAmbiguous) {
			t.Fatal(err)
		}
		return err == nil
	})
}

// admit adds a server that has joined, waits until it has caught up, and gives it a vote.
func admit(t testing.TB, ps []*peer, p *peer) {
	t.Helper()
	byLeader(t, ps, func(l *peer) error { return l.AddMember(t.Context(), p.id, p.address) })
	caughtUp(t, ps, p)
	byLeader(t, ps, func(l *peer) error { return l.Promote(t.Context(), p.id) })
}

// say proposes until it is confirmed; it may be there more than once then.
func say(t testing.TB, ps []*peer, what string) (r Result) {
	t.Helper()
	byLeader(t, ps, func(l *peer) (err error) {
		r, err = l.Propose(t.Context(), []byte(what))
		return err
	})
	return r
}

// A server alone becomes the first of three, without the loss of anything, and one again in the end.
func TestFromOneToThreeAndBack(t *testing.T) {
	a := authority(t)
	one := newPeer(t, a)
	s := start(t, compact(one.dir))
	for i := range 200 {
		s.mustPropose(t, "alone"+name(i))
	}
	if m := s.Members(); len(m) != 1 || m[0].Address != string(aloneAddress) || !m[0].Votes || m[0].ID != s.Self() {
		t.Errorf("alone: %+v", m)
	}
	if index, err := s.ReadIndex(t.Context()); err != nil || index < s.Applied() {
		t.Errorf("alone: read index %d of %d, %v", index, s.Applied(), err)
	}
	s.mustStop(t)

	one.start()
	one.lead()
	testwait.Until(t, "its address is in the log", func() bool { m, _ := one.member(one.id); return m.Address == one.address })
	two, other := newPeer(t, a), newPeer(t, a)
	ps := []*peer{one, two, other}
	for _, p := range ps[1:] {
		p.join()
		p.lead()
		if err := one.Promote(t.Context(), p.id); !errors.Is(err, ErrNoMember) {
			t.Errorf("a stranger promoted: %v", err)
		}
		byLeader(t, ps, func(l *peer) error { return l.AddMember(t.Context(), p.id, p.address) })
		if m, ok := one.member(p.id); !ok || m.Votes {
			t.Errorf("%+v: it votes already, or is not there", m)
		}
		admit(t, ps, p)
	}
	say(t, ps, "of three")
	caughtUp(t, ps, two)
	if got := two.machine.list(); len(got) < 201 || got[0] != "alone"+name(0) || got[len(got)-1] != "of three" {
		t.Errorf("the second has %d proposals", len(got))
	}
	if two.machine.restored() == 0 {
		t.Error("the second came without a snapshot: the test does not test that")
	}
	testwait.Until(t, "all know the leader", func() bool {
		l := leaderOf(t, ps)
		for _, p := range ps {
			if m, ok := p.Leader(); !ok || m.ID != l.id || m.Address != l.address {
				return false
			}
		}
		return true
	})
	leader := leaderOf(t, ps)
	follower := ps[(slices.Index(ps, leader)+1)%3]
	if _, err := follower.ReadIndex(t.Context()); !errors.Is(err, ErrNotLeader) && !follower.IsLeader() {
		t.Errorf("a follower's read index: %v", err)
	}
	if err := follower.RemoveMember(t.Context(), leader.id); !errors.Is(err, ErrNotLeader) && !follower.IsLeader() {
		t.Errorf("a change by a follower: %v", err)
	}

	// The leader is lost; the others go on. It comes back.
	one.stop()
	say(t, ps, "without the first")
	one.start()
	one.lead()
	caughtUp(t, ps, one)
	if got := one.machine.list(); got[len(got)-1] != "without the first" {
		t.Errorf("the first came back with %q", got[len(got)-1])
	}

	// Leadership goes where it is told to.
	testwait.Until(t, "the first leads again", func() bool {
		leader := leaderOf(t, ps)
		if err := leader.Transfer(t.Context(), one.id); err != nil {
			t.Logf("transfer: %v", err) // a busy machine has missed the moment
		}
		return leader == one
	})
	if err := leaderOf(t, ps).Transfer(t.Context(), "s-nobody"); !errors.Is(err, ErrNoMember) {
		t.Errorf("to nobody: %v", err)
	}

	// Alone it must not be started now: it would wait for ever.
	other.stop()
	if _, err := Open(small(other.dir, &recorder{})); err == nil || !strings.Contains(err.Error(), one.address) {
		t.Errorf("one of three opened alone: %v", err)
	}
	byLeader(t, ps, func(l *peer) error { return l.RemoveMember(t.Context(), other.id) })
	// The leader may be the one that goes; the other leads then.
	byLeader(t, ps, func(l *peer) error {
		if err := l.RemoveMember(t.Context(), two.id); err != nil && !errors.Is(err, ErrNoMember) {
			return err
		}
		return nil
	})
	testwait.Until(t, "the first is alone", func() bool { return leaderOf(t, ps) == one && len(one.Members()) == 1 })
	if err := one.RemoveMember(t.Context(), one.id); !errors.Is(err, ErrLastVoter) {
		t.Errorf("the last one removed: %v", err)
	}
	if err := one.RemoveMember(t.Context(), two.id); !errors.Is(err, ErrNoMember) {
		t.Errorf("removed twice: %v", err)
	}
	say(t, ps, "one again")
	one.stop()
	s = start(t, small(one.dir, &recorder{}))
	if err := s.Barrier(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := s.machine.list(); got[len(got)-1] != "one again" || len(got) < 203 {
		t.Errorf("alone again: %d proposals, the last %q", len(got), got[len(got)-1])
	}
}

// A read index of a leader that others have left behind would be stale.
func TestReadIndexNeedsAMajority(t *testing.T) {
	ps := three(t)
	r := say(t, ps, "x")
	var leader *peer
	byLeader(t, ps, func(l *peer) error {
		index, err := l.ReadIndex(t.Context())
		if err == nil && index < r.Index {
			t.Errorf("after entry %d: %d", r.Index, index)
		}
		leader = l
		return err
	})
	for _, p := range ps {
		if p != leader {
			p.stop()
		}
	}
	if index, err := leader.ReadIndex(t.Context()); !errors.Is(err, ErrNotLeader) {
		t.Errorf("without the others: %d, %v", index, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := leader.Wait(ctx, r.Index+1000); !errors.Is(err, context.Canceled) {
		t.Errorf("wait for what does not come: %v", err)
	}
	if err := leader.Wait(ctx, r.Index); err != nil {
		t.Errorf("wait for what is there: %v", err)
	}
	waits := make(chan error, 1)
	go func() { waits <- leader.Wait(context.Background(), r.Index+1000) }()
	leader.stop()
	if err := <-waits; !errors.Is(err, ErrStopping) {
		t.Errorf("wait when the log stops: %v", err)
	}
}

// A server whose disk was lost comes back as a new one: the old one's vote is not to be used again.
func TestLostDirectory(t *testing.T) {
	ps := three(t)
	lost := ps[2]
	lost.stop()
	if err := os.RemoveAll(filepath.Join(lost.dir, logName)); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(lost.dir, logName), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := SetJoining(lost.dir); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("a directory with a log may join: %v", err)
	}
	say(t, ps, "two are enough")

	fresh := newPeer(t, lost.authority)
	fresh.join()
	if fresh.id == lost.id {
		t.Error("it has the lost one's id")
	}
	byLeader(t, ps, func(l *peer) error { return l.RemoveMember(t.Context(), lost.id) })
	admit(t, ps, fresh)
	if err := leaderOf(t, ps).Promote(t.Context(), lost.id); !errors.Is(err, ErrNoMember) {
		t.Errorf("the lost one promoted: %v", err)
	}
	if got := fresh.machine.list(); !slices.Contains(got, "two are enough") {
		t.Errorf("the new one has %q", got)
	}
	testwait.Until(t, "the new one is no longer joining", func() bool {
		_, err := os.Lstat(filepath.Join(fresh.dir, joiningName))
		return errors.Is(err, os.ErrNotExist)
	})
}

// A joining server may be killed and started at any point before something has arrived.
func TestJoiningIsTriedAgain(t *testing.T) {
	a := authority(t)
	p := newPeer(t, a)
	first, err := SetJoining(p.dir)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := SetJoining(p.dir); err != nil || again != first {
		t.Errorf("%s, then %s, %v", first, again, err)
	}
	p.start() // nobody answers
	p.stop()
	if again, err := SetJoining(p.dir); err != nil || again != first {
		t.Errorf("after a start that nobody answered: %s, %v", again, err)
	}
	one := newPeer(t, a)
	one.start()
	one.lead()
	testwait.Until(t, "the first leads", one.IsLeader)
	p.start()
	if err := one.AddMember(t.Context(), p.id, p.address); err != nil {
		t.Fatal(err)
	}
	one.mustPropose(t, "hello")
	caughtUp(t, []*peer{one}, p)
	p.stop()
	// Its address changes, and the log learns of it.
	moved := newPeer(t, a)
	p.address = moved.address
	p.start()
	if err := one.AddMember(t.Context(), p.id, p.address); err != nil {
		t.Fatal(err)
	}
	r := one.mustPropose(t, "there")
	if err := p.Wait(t.Context(), r.Index); err != nil {
		t.Fatal(err)
	}
	if m := one.Members(); len(m) != 2 {
		t.Errorf("%+v", m)
	}
	testwait.Until(t, "both have heard of a leader", func() bool { return !p.LastContact().IsZero() && !one.LastContact().IsZero() })
	if fmt.Sprint(p.machine.list()) != "[hello there]" {
		t.Errorf("%v", p.machine.list())
	}
}
