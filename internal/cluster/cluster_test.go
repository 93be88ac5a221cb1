package cluster

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/forward"
	"github.com/musterhq/muster/internal/raftlog"
	"github.com/musterhq/muster/internal/state"
)

// log is a Log whose members and leader are set by the test.
type log struct {
	self, leader string
	members      []raftlog.Member
	applied      uint64
	removed      []string
}

func (l *log) Self() string              { return l.self }
func (l *log) Members() []raftlog.Member { return l.members }
func (l *log) Leader() (raftlog.Member, bool) {
	return raftlog.Member{ID: l.leader}, l.leader != ""
}
func (l *log) IsLeader() bool                                  { return l.leader == l.self }
func (l *log) Term() uint64                                    { return 1 }
func (l *log) Applied() uint64                                 { return l.applied }
func (l *log) Wait(context.Context, uint64) error              { return nil }
func (l *log) LastContact() time.Time                          { return time.Now() }
func (l *log) ReadIndex(context.Context) (uint64, error)       { return l.applied, nil }
func (l *log) AddMember(context.Context, string, string) error { return nil }
func (l *log) Promote(context.Context, string) error           { return nil }
func (l *log) Transfer(context.Context, string) error          { return nil }
func (l *log) RemoveMember(_ context.Context, id string) error {
	l.removed = append(l.removed, id)
	return nil
}
func (l *log) Propose(context.Context, state.Fact) (uint64, any, error) { return 0, nil, nil }

// newTest makes the cluster of a server "a" with further members that vote.
func newTest(t *testing.T, l *log, others ...string) *Cluster {
	t.Helper()
	s, err := state.New(16)
	if err != nil {
		t.Fatal(err)
	}
	l.self = "a"
	for _, id := range append([]string{"a"}, others...) {
		l.members = append(l.members, raftlog.Member{ID: id, Address: id + ":1", Votes: true})
	}
	c := &Cluster{cfg: Config{Reads: int(state.FormatNewest)}, removed: make(chan struct{}), heard: map[string]heard{}}
	c.Attach(l, s, l)
	return c
}

// A server that was off while another one joined must take that one's messages, or it would never learn of it.
func TestOnlyAServerWithALeaderRefuses(t *testing.T) {
	l := &log{}
	c := newTest(t, l, "b")
	if err := c.refuse("d"); err != nil {
		t.Errorf("without a leader: %v", err)
	}
	l.leader = "b"
	if err := c.refuse("d"); err == nil {
		t.Error("with a leader, a server that is no member may send messages of the log")
	}
	if err := c.refuse("b"); err != nil {
		t.Error(err)
	}
}

// Who asks and is no member is told so, and up to where the answering server knows it.
func TestAnswerToAStranger(t *testing.T) {
	l := &log{applied: 7}
	c := newTest(t, l, "b")
	ask := func() http.Header {
		w := httptest.NewRecorder()
		c.Handler(nil).ServeHTTP(w, httptest.NewRequest(http.MethodGet, statusPath, nil))
		if w.Code != http.StatusGone || w.Header().Get(forward.NotLeading) == "" {
			t.Errorf("%d %v", w.Code, w.Header())
		}
		return w.Header()
	}
	if h := ask(); h.Get(appliedHeader) != "" {
		t.Errorf("a server without a leader claims to know: %v", h)
	}
	l.leader = "b"
	if h := ask(); h.Get(appliedHeader) != "7" {
		t.Errorf("%v", h)
	}
}

// Without a majority that answers nobody is removed.
func TestRemoveKeepsAMajority(t *testing.T) {
	l := &log{leader: "a"}
	c := newTest(t, l, "b", "c")
	for _, tt := range []struct {
		alive  []string
		remove string
		want   string
	}{
		{nil, "c", "no majority"},
		{[]string{"c"}, "c", "no majority"},
		{[]string{"b"}, "d", "has none of this name"},
	} {
		c.heard = map[string]heard{}
		for _, id := range tt.alive {
			c.heard[id] = heard{at: time.Now()}
		}
		if err := c.Remove(t.Context(), tt.remove); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v: %v", tt, err)
		}
	}
	if len(l.removed) > 0 {
		t.Errorf("%q were removed", l.removed)
	}
	l.leader = "b"
	if err := c.Remove(t.Context(), "c"); !muster.IsKind(err, muster.FaultUnavailable) {
		t.Errorf("by a server that does not lead: %v", err)
	}
}

// The newest format that all read is not known before each server has said what it reads.
func TestReadable(t *testing.T) {
	l := &log{leader: "a"}
	c := newTest(t, l, "b")
	if got := c.Readable(); got != 0 {
		t.Errorf("a server that has said nothing: %d", got)
	}
	l.members = l.members[:1]
	if got := c.Readable(); got != state.FormatNewest {
		t.Errorf("alone: %d", got)
	}
}
