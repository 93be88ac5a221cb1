package agent

import (
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/agent/contract"
	wire "github.com/musterhq/muster/internal/wire/agent"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// answering is an init whose executions end as told.
func answering(end func(command []string) initwire.ExecEnded) func(net.Conn) {
	return func(conn net.Conn) {
		defer func() { _ = conn.Close() }()
		kind, fields, err := initwire.ReadFrame(conn, initwire.MaxStart)
		if err != nil || kind != initwire.KindExec {
			return
		}
		e, err := initwire.ParseExec(fields)
		if err != nil {
			return
		}
		_ = initwire.WriteFrame(conn, initwire.KindExecStarted, (&initwire.ExecStarted{ID: "e1", At: 1}).Fields())
		_ = initwire.WriteFrame(conn, initwire.KindStderr, []byte("some\nwords"))
		ended := end(e.Command)
		_ = initwire.WriteFrame(conn, initwire.KindExecEnded, ended.Fields())
	}
}

func proving(id muster.AllocID, r wire.Readiness) wire.DesiredAlloc {
	d := run(id, "wait")
	d.Spec.Ready = &r
	return d
}

// TestReadiness: the command is run until it passes, and never again, not by the next agent either.
func TestReadiness(t *testing.T) {
	rt := newPlayed()
	var asked atomic.Int32
	rt.init = answering(func(command []string) initwire.ExecEnded {
		if !slices.Equal(command, []string{"check", "it"}) {
			t.Errorf("ran %q", command)
		}
		if asked.Add(1) < 3 {
			return initwire.ExecEnded{Exit: 7}
		}
		return initwire.ExecEnded{}
	})
	r := newRig(t, rt, "")
	r.must(set(proving("u-0-1", wire.Readiness{Command: []string{"check", "it"}, IntervalMillis: 300}), run("u-1-1", "wait")))
	r.eventually("why it is not ready is told", func() bool {
		got := r.report("u-0-1")
		return got != nil && got.Ready == 0 && strings.Contains(got.Detail, "exited with code 7: some words")
	})
	r.eventually("it is ready", func() bool { got := r.report("u-0-1"); return got.Ready != 0 && got.Detail == "" })
	if got := r.report("u-1-1"); got.Ready == 0 || got.Ready != got.Started {
		t.Errorf("one without a command: %+v", got)
	}
	at := r.report("u-0-1").Ready
	r.stop()
	r = newRig(t, rt, r.dir)
	r.until("u-0-1", muster.AllocRunning)
	if got := r.report("u-0-1"); got.Ready != at || asked.Load() != 3 {
		t.Errorf("after a restart: ready %v, was %v; asked %d times", got.Ready, at, asked.Load())
	}
}

// A step of the node's clock while a sandbox is getting ready takes nothing of its time.
func TestReadinessOverAClockStep(t *testing.T) {
	rt := newPlayed()
	rt.ahead = time.Hour
	var asked atomic.Int32
	rt.init = answering(func([]string) initwire.ExecEnded {
		if asked.Add(1) < 3 {
			return initwire.ExecEnded{Exit: 1}
		}
		return initwire.ExecEnded{}
	})
	r := newRig(t, rt, "")
	r.must(set(proving("u-0-1", wire.Readiness{Command: []string{"check"}, IntervalMillis: 1, GiveUpMillis: 600_000})))
	r.eventually("it is ready, or has ended", func() bool {
		got := r.report("u-0-1")
		return got != nil && (got.Ready != 0 || got.Status == muster.AllocEnded)
	})
	if got := r.report("u-0-1"); got.Ready == 0 {
		t.Errorf("it failed: %+v", got.Failure)
	}
}

func TestReadinessGivesUp(t *testing.T) {
	rt := newPlayed()
	rt.init = answering(func(command []string) initwire.ExecEnded {
		if command[0] == "late" {
			return initwire.ExecEnded{Signal: 9, TimedOut: true}
		}
		return initwire.ExecEnded{Exit: 1}
	})
	r := newRig(t, rt, "")
	r.must(set(proving("u-0-1", wire.Readiness{Command: []string{"never"}, IntervalMillis: 1, GiveUpMillis: 50}),
		proving("u-1-1", wire.Readiness{Command: []string{"late"}, IntervalMillis: 1, TimeoutMillis: 20, GiveUpMillis: 50}),
		proving("u-2-1", wire.Readiness{Command: []string{"never"}, IntervalMillis: 1}), proving("u-3-1", wire.Readiness{})))
	for id, says := range map[muster.AllocID]string{"u-0-1": "not ready within 50ms: its readiness command exited with code 1", "u-1-1": "took longer than 20ms"} {
		got := r.until(id, muster.AllocEnded)
		if got.Outcome != muster.OutcomeFailed || got.Failure == nil || got.Failure.Reason != muster.ReasonNotReady || !strings.Contains(got.Failure.Message, says) {
			t.Errorf("%s: %+v %v", id, got, got.Failure)
		}
	}
	if got := r.until("u-3-1", muster.AllocEnded); got.Failure == nil || got.Failure.Reason != muster.ReasonSpec {
		t.Errorf("without a command: %+v", got)
	}
	// One that is stopped meanwhile was stopped, and nothing else.
	r.until("u-2-1", muster.AllocRunning)
	r.must(set(stop("u-2-1")...))
	if got := r.until("u-2-1", muster.AllocEnded); got.Outcome != muster.OutcomeStopped {
		t.Errorf("stopped: %+v", got)
	}
}

// TestFrozen: it stands once it is ready, goes on for whoever is connected to its init, and when the set says so.
func TestFrozen(t *testing.T) {
	rt := newPlayed()
	r := newRig(t, rt, "")
	frozen := func(yes bool) wire.Desired {
		d := run("u-0-1", "wait")
		d.Frozen = yes
		return set(d)
	}
	r.must(frozen(true))
	r.eventually("it stands", func() bool { got := r.report("u-0-1"); return got != nil && got.Frozen })
	b := rt.box("u-0-1")
	frosts := func(want string) {
		t.Helper()
		r.eventually("frozen and thawed: "+want, func() bool {
			rt.mu.Lock()
			defer rt.mu.Unlock()
			return strings.Join(b.frosts, " ") == want
		})
	}
	tunnel, err := r.client.Tunnel(t.Context(), "u-0-1", []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	if n, err := tunnel.Read(make([]byte, 1)); n != 1 {
		t.Error(err)
	}
	frosts("freeze thaw")
	if r.report("u-0-1").Frozen {
		t.Error("it is told to stand while somebody is connected")
	}
	_ = tunnel.Close()
	frosts("freeze thaw freeze")
	// A restarted agent leaves it as it is until it is told.
	r.stop()
	r = newRig(t, rt, r.dir)
	if got := r.until("u-0-1", muster.AllocRunning); !got.Frozen {
		r.eventually("it still stands", func() bool { return r.report("u-0-1").Frozen })
	}
	frosts("freeze thaw freeze")
	r.must(frozen(false))
	r.eventually("it goes on", func() bool { return !r.report("u-0-1").Frozen })
	frosts("freeze thaw freeze thaw")
	r.must(frozen(true))
	frosts("freeze thaw freeze thaw freeze")
	r.must(set(stop("u-0-1")...))
	if got := r.until("u-0-1", muster.AllocEnded); got.Outcome != muster.OutcomeStopped {
		t.Errorf("%+v", got)
	}
	// Where there is no freezer it goes on, and says so.
	rt.mu.Lock()
	rt.warm = true
	rt.mu.Unlock()
	d := run("u-1-1", "wait")
	d.Frozen = true
	r.must(set(d))
	r.until("u-1-1", muster.AllocRunning)
	r.eventually("it is told in the log", func() bool { return strings.Contains(r.log.String(), "should be frozen is running") })
	if r.report("u-1-1").Frozen {
		t.Error("it says that it stands")
	}
}

// TestFrozenOnlyWhenReady: what is not ready must go on to become so.
func TestFrozenOnlyWhenReady(t *testing.T) {
	rt := newPlayed()
	pass := make(chan struct{})
	rt.init = answering(func([]string) initwire.ExecEnded {
		select {
		case <-pass:
			return initwire.ExecEnded{}
		default:
			return initwire.ExecEnded{Exit: 1}
		}
	})
	r := newRig(t, rt, "")
	d := proving("u-0-1", wire.Readiness{Command: []string{"x"}, IntervalMillis: 5})
	d.Frozen = true
	r.must(set(d))
	r.until("u-0-1", muster.AllocRunning)
	time.Sleep(20 * time.Millisecond)
	if got := r.report("u-0-1"); got.Frozen || got.Ready != 0 {
		t.Errorf("%+v", got)
	}
	close(pass)
	r.eventually("it stands", func() bool { got := r.report("u-0-1"); return got.Frozen && got.Ready != 0 })
}

// TestIsolation: less than is demanded is never given.
func TestIsolation(t *testing.T) {
	rt := newPlayed()
	r := newRig(t, rt, "")
	demand := func(id muster.AllocID, i muster.Isolation) wire.DesiredAlloc {
		d := run(id, "wait")
		d.Spec.Isolation = string(i)
		return d
	}
	r.must(set(demand("u-0-1", muster.IsolationProcess), demand("u-1-1", muster.IsolationContainer)))
	r.until("u-0-1", muster.AllocRunning)
	got := r.until("u-1-1", muster.AllocEnded)
	if got.Failure == nil || got.Failure.Class != muster.FailureUser || !strings.Contains(got.Failure.Message, "image") || rt.started("u-1-1") != 0 {
		t.Errorf("%+v %v", got, got.Failure)
	}
	n := &node{cfg: Config{Node: "n1"}}
	for _, has := range []muster.Isolation{muster.IsolationContainer, muster.IsolationUserNamespace, "runsc"} {
		c := newPlayed()
		c.isolation = has
		n.runtimes = []contract.Runtime{c, imageRuntime{c}}
		for _, want := range []muster.Isolation{"", muster.IsolationContainer, muster.IsolationUserNamespace, "runsc"} {
			got, f := n.runtimeFor(&wire.AllocSpec{Template: api.Template{Image: "x", Isolation: string(want)}})
			if (got != nil) != has.Gives(want) || got == nil && (f.Class != muster.FailureNode || !strings.Contains(f.Message, string(has))) {
				t.Errorf("%s where %s is: %v, %v", want, has, got, f)
			}
		}
	}
}

// A node whose containers another program makes says so, and starts nothing.
func TestRuntimeByName(t *testing.T) {
	n := &node{cfg: Config{Node: "n1"}, runtimes: []contract.Runtime{versionedRuntime{imageRuntime{newPlayed()}}}}
	if got, f := n.runtimeFor(&wire.AllocSpec{Template: api.Template{Image: "x", Runtime: "crun"}}); got == nil {
		t.Errorf("crun where crun is: %v", f)
	}
	if got, f := n.runtimeFor(&wire.AllocSpec{Template: api.Template{Image: "x", Runtime: "runsc"}}); got != nil || f.Class != muster.FailureNode || !strings.Contains(f.Message, "crun 1.8.1") {
		t.Errorf("runsc where crun is: %v, %v", got, f)
	}
}

type versionedRuntime struct{ imageRuntime }

func (versionedRuntime) Version() string { return "crun 1.8.1" }

type imageRuntime struct{ *played }

func (imageRuntime) RunsImages() {}
