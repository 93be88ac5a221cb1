package link

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

// F-M2: a lost node shows why it cannot be reached, and the reason follows what its host answers.
func TestLostNodeShowsItsCause(t *testing.T) {
	inBubble(t, func(r *rig) {
		var why atomic.Pointer[string]
		r.config.Dial = func(ctx context.Context, n *state.Node) (net.Conn, error) {
			if w := why.Load(); w != nil {
				return nil, errors.New(*w)
			}
			return r.node(n.ID).Dial(ctx)
		}
		r.config.StartAgent = func(context.Context, *state.Node) error {
			if w := why.Load(); w != nil {
				return errors.New(*w)
			}
			return nil
		}
		r.start()
		n := r.boot("n1", 4)
		r.until("it serves", time.Minute, func(s *state.Snapshot) bool { return s.Node("n1").Schedulable() })
		answers := func(w string) {
			t.Helper()
			why.Store(&w)
			n.Cut(true)
			n.Cut(false)
			r.until("the reason has "+w, 2*time.Minute, func(s *state.Snapshot) bool {
				n := s.Node("n1")
				return n.Health == muster.NodeLost && n.HealthReason == "its agent cannot be reached: "+w
			})
		}
		answers("connection refused")
		since := r.log.Latest().Node("n1").HealthSince
		answers("host key of h1 is ssh-ed25519 SHA256:seen, expected ssh-ed25519 SHA256:expected (pinned)")
		if got := r.log.Latest().Node("n1").HealthSince; got != since {
			t.Errorf("it is lost since %v, and was since %v", got, since)
		}
	})
}

// A start that hangs replaces the error of the attempt before.
func TestSlowStartReplacesTheErrorBefore(t *testing.T) {
	inBubble(t, func(r *rig) {
		var hangs atomic.Bool
		r.config.StartAgent = func(ctx context.Context, _ *state.Node) error {
			if hangs.Load() {
				<-ctx.Done()
				return ctx.Err()
			}
			return errors.New("connection refused")
		}
		n := r.boot("n1", 4)
		n.Kill()
		r.start()
		r.until("the first error", time.Minute, func(s *state.Snapshot) bool {
			return strings.Contains(s.Node("n1").BootError, "connection refused")
		})
		hangs.Store(true)
		r.until("the start that hangs", time.Minute, func(s *state.Snapshot) bool {
			return strings.Contains(s.Node("n1").BootError, "has taken longer than 10s")
		})
	})
}

// A start that takes long and succeeds is not the reason any more, also where its agent does not answer after it.
func TestSlowStartThatSucceedsIsNoReason(t *testing.T) {
	inBubble(t, func(r *rig) {
		var quick atomic.Bool
		r.config.StartAgent = func(context.Context, *state.Node) error {
			if !quick.Swap(true) {
				time.Sleep(12 * time.Second)
			}
			return nil
		}
		n := r.boot("n1", 4)
		n.Kill()
		r.start()
		r.until("the start that takes long", time.Minute, func(s *state.Snapshot) bool {
			return strings.Contains(s.Node("n1").BootError, "has taken longer than 10s")
		})
		r.until("that it does not answer", 10*time.Second, func(s *state.Snapshot) bool {
			n := s.Node("n1")
			return n.HealthReason == n.BootError && strings.HasPrefix(n.BootError, "its agent was started and does not answer: ")
		})
		if c := r.link.node("n1").contactNow(); strings.Contains(c.Away, "so far") {
			t.Errorf("away: %s", c.Away)
		}
		before := r.log.Latest().Index()
		time.Sleep(time.Minute)
		if facts := r.log.Latest().Index() - before; facts > 0 {
			t.Errorf("%d facts while nothing changed", facts)
		}
	})
}

// A reason that differs at each attempt does not fill the log.
func TestReasonOfALostNodeIsRenewedAtABoundedRate(t *testing.T) {
	inBubble(t, func(r *rig) {
		var attempt atomic.Int64
		var away atomic.Bool
		r.config.StartAgent = nil
		r.config.Dial = func(ctx context.Context, n *state.Node) (net.Conn, error) {
			if away.Load() {
				return nil, fmt.Errorf("attempt %d", attempt.Add(1))
			}
			return r.node(n.ID).Dial(ctx)
		}
		r.start()
		n := r.boot("n1", 4)
		r.until("it serves", time.Minute, func(s *state.Snapshot) bool { return s.Node("n1").Schedulable() })
		away.Store(true)
		n.Cut(true)
		r.until("it is lost", time.Minute, func(s *state.Snapshot) bool { return s.Node("n1").Health == muster.NodeLost })
		before := r.log.Latest().Index()
		time.Sleep(10 * time.Minute)
		tried := attempt.Load()
		if facts := r.log.Latest().Index() - before; tried < 200 || facts < 10 || facts > 62 {
			t.Errorf("%d attempts in 10 minutes, and %d facts", tried, facts)
		}
	})
}

func TestAwayLeavesOutWhatDiffersEachTime(t *testing.T) {
	op := &net.OpError{Op: "read", Net: "tcp", Source: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 43210}, Addr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 2), Port: 22}, Err: errors.New("i/o timeout")}
	err := &url.Error{Op: "Get", URL: "http://agent/v1/agent", Err: fmt.Errorf("host n1: %w", op)}
	if got, want := away(err), "host n1: read tcp 10.0.0.2:22: i/o timeout"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
