package poseidon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/coder/websocket"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/inside"
	"github.com/musterhq/muster/internal/state"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// patience is how long a conversation waits for what.
type patience struct {
	// stall is how long a client may take nothing: a slow one slows its program down.
	stall time.Duration
	// quiet is the silence after which a ping is sent.
	quiet time.Duration
	// grace is the time from asking a program to end to ending it by force; give how long that may
	// take before its runner is destroyed.
	grace, give time.Duration
	// reason is how long it may take until it is known why a runner went.
	reason time.Duration
	// halfClosed is how long a connection to a mapped port may be silent after its client has
	// closed its own side.
	halfClosed time.Duration
}

func usualPatience() patience {
	return patience{stall: time.Hour, quiet: 15 * time.Second, grace: killGrace, give: 15 * time.Second, reason: 5 * time.Second, halfClosed: time.Minute}
}

// said is a message to the client.
type said struct {
	Type string `json:"type"`
	Data any    `json:"data,omitempty"`
}

// Types of messages.
const (
	typeStart   = "start"
	typeStdout  = "stdout"
	typeStderr  = "stderr"
	typeError   = "error"
	typeExit    = "exit"
	typeTimeout = "timeout"
)

// outOfMemory is what clients look for.
const outOfMemory = "the allocation was OOM Killed"

// connect is the one connection of an execution.
func (p *Poseidon) connect(w http.ResponseWriter, r *http.Request, c *state.Claim) error {
	id := r.URL.Query().Get("executionID")
	if p.pending.has(c.Runner, id, time.Now()) && !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		w.Header().Set("Upgrade", "websocket")
		return refused(http.StatusUpgradeRequired, "this is asked as a WebSocket (Connection: Upgrade, Upgrade: websocket)")
	}
	e := p.pending.take(c.Runner, id, time.Now())
	if e == nil {
		return refused(http.StatusNotFound, "runner %s has no such execution that waits for its client: an execution is good for one connection, within %s", c.Runner, waitTime)
	}
	// The request's own context ends with the client, and the program is asked to end before it is
	// made to.
	inner, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	defer cancel()
	v := &conversation{p: p, runner: string(c.Runner), claim: c.ID, exec: e.exec, cancel: cancel, over: make(chan struct{}), left: make(chan struct{}), frames: make(chan frame)}
	err := p.as(c, e.privileged, always, func(user string) error {
		e.exec.User = user
		ask, err := inside.AskStart(e.exec)
		if err != nil {
			return err
		}
		v.x, err = p.cfg.Inside.Executions.Start(inner, v.runner, ask)
		return err
	})
	if err != nil {
		if pr := p.problem(r.Context(), "start execution", err); pr.Status != http.StatusUnprocessableEntity {
			return err
		}
	}
	ws, failed := websocket.Accept(w, r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionDisabled})
	if failed != nil {
		if v.x != nil {
			_ = v.x.Close()
		}
		return nil // it has answered
	}
	ws.SetReadLimit(-1) // passed on as it comes
	v.ws, v.began = ws, time.Now()
	v.send(said{Type: typeStart})
	if err != nil {
		// The image has no shell, or the like: that is how this execution ended.
		v.last(said{Type: typeError, Data: p.problem(r.Context(), "start execution", err).Detail}, said{Type: typeExit, Data: 127})
		return nil
	}
	stopping, stop := p.streaming(inner)
	defer stop()
	v.run(stopping)
	return nil
}

// frame is something that the execution said.
type frame struct {
	kind  initwire.Kind
	data  []byte
	ended *initwire.ExecEnded
	err   error
}

// last: nothing comes after it.
func (f *frame) last() bool { return f.ended != nil || f.err != nil }

// conversation is an execution and its client. Three goroutines serve it: one what the client says,
// one what the program says, and the one that started both, which alone speaks to the client.
type conversation struct {
	p      *Poseidon
	runner string
	claim  muster.ClaimID
	exec   *initwire.Exec
	x      *inside.Execution
	cancel func()
	ws     *websocket.Conn

	began time.Time
	sent  atomic.Int64
	// over ends the goroutines, left is closed when the client has left.
	over, left chan struct{}
	leave      sync.Once
	frames     chan frame
	out, errs  text
	// printed: something came from the program; ended: nothing more does.
	printed, ended bool
}

func (v *conversation) gone() { v.leave.Do(func() { close(v.left) }) }

func (v *conversation) run(stopping context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer func() { _ = v.ws.CloseNow() }()
	defer v.cancel()
	defer func() { _ = v.x.Close() }()
	defer close(v.over)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	wg.Go(func() { v.receive(ctx); v.gone() })
	wg.Go(v.hear)
	wg.Go(func() { v.keepAwake(ctx) })

	var limit <-chan time.Time
	if v.exec.Timeout > 0 {
		t := time.NewTimer(v.exec.Timeout)
		defer t.Stop()
		limit = t.C
	}
	for {
		select {
		case f := <-v.frames:
			if f.last() {
				v.conclude(&f)
				return
			}
			v.pass(&f)
		case <-limit:
			// Init ends it: asked at this moment, forced after the grace. The client need not wait
			// for that.
			v.rest()
			v.last(said{Type: typeTimeout})
			v.drain(v.p.patience.grace)
			v.force()
			return
		case <-v.left:
			v.signal(syscall.SIGQUIT)
			v.drain(v.p.patience.grace)
			v.force()
			return
		case <-stopping.Done():
			v.rest()
			v.last(said{Type: typeError, Data: "the server is stopping"})
			return
		}
	}
}

// signal does not go behind input that the program does not take.
func (v *conversation) signal(sig syscall.Signal) {
	ctx, cancel := context.WithTimeout(context.Background(), v.p.patience.grace)
	defer cancel()
	if err := v.p.cfg.Inside.Executions.Signal(ctx, v.runner, v.exec.ID, sig); err != nil {
		v.p.logger.Debug("execution not signalled", "runner", v.runner, "signal", sig.String(), "error", err)
	}
}

// hear hands on what the program says, as fast as that is taken.
func (v *conversation) hear() {
	for {
		kind, data, ended, err := v.x.Next()
		f := frame{kind: kind, ended: ended, err: err}
		if !f.last() {
			f.data = bytes.Clone(data) // the next call overwrites it
		}
		select {
		case v.frames <- f:
		case <-v.over:
			return
		}
		if f.last() {
			return
		}
	}
}

// drain waits for the end, and takes what is said until then.
func (v *conversation) drain(atMost time.Duration) {
	t := time.NewTimer(atMost)
	defer t.Stop()
	for !v.ended {
		select {
		case f := <-v.frames:
			v.ended = f.last()
		case <-t.C:
			return
		}
	}
}

// force ends what did not end when it was asked to. A runner in which even that cannot be done is
// destroyed.
func (v *conversation) force() {
	if v.ended {
		return
	}
	v.signal(syscall.SIGKILL)
	v.drain(v.p.patience.give)
	if v.ended {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), v.p.patience.give)
	defer cancel()
	err := v.p.cfg.Claims.Release(ctx, v.runner)
	v.p.logger.Warn("runner destroyed, as an execution in it could not be ended", "runner", v.runner, "execution", v.exec.ID, "error", err)
}

// pass sends what the program printed.
func (v *conversation) pass(f *frame) {
	kind, t := typeStdout, &v.out
	if f.kind == initwire.KindStderr {
		kind, t = typeStderr, &v.errs
	}
	if b := t.next(f.data); len(b) > 0 {
		if t == &v.errs {
			// As if it had gone through a terminal, which Poseidon's does.
			b = bytes.ReplaceAll(b, []byte("\n"), []byte("\r\n"))
		}
		if !v.printed {
			v.printed = true
			v.x.PutOut()
		}
		v.send(said{kind, string(b)})
	}
}

// rest sends what was kept for a letter that never became whole.
func (v *conversation) rest() {
	if b := v.out.rest(); len(b) > 0 {
		v.send(said{typeStdout, string(b)})
	}
	if b := v.errs.rest(); len(b) > 0 {
		v.send(said{typeStderr, string(b)})
	}
	v.out, v.errs = text{}, text{}
}

// conclude tells how it ended.
func (v *conversation) conclude(f *frame) {
	v.rest()
	// Where there is no status of the program an error comes alone: an exit behind it is what
	// clients go by, and 137 is out of memory to them.
	if f.ended == nil {
		v.last(said{Type: typeError, Data: v.lost(f.err)})
		return
	}
	end, outOf := v.x.End(context.Background(), f.ended)
	exit := said{Type: typeExit, Data: end.ExitCode}
	switch {
	case end.TimedOut:
		v.last(said{Type: typeTimeout})
	case outOf && v.runnerGone():
		v.last(said{Type: typeError, Data: outOfMemory})
	case outOf:
		// The runner lives on: what the program ended with says it.
		v.last(exit)
	case end.Reason != "":
		v.last(said{Type: typeError, Data: v.lost(errors.New(end.Reason))})
	default:
		v.last(exit)
	}
}

// goesAlong is how long after its program a runner is looked at that was killed with it.
const goesAlong = 300 * time.Millisecond

// runnerGone reports whether the runner has ended with its program, or does so in a moment: what
// was killed for memory may have taken init along.
func (v *conversation) runnerGone() bool {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	late := time.NewTimer(min(v.p.patience.reason, goesAlong))
	defer late.Stop()
	for {
		if _, gone := v.p.claimed(v.runner); gone != nil {
			return true
		}
		select {
		case <-tick.C:
			continue
		case <-v.left:
		case <-late.C:
		}
		return false
	}
}

// lost is why an execution ended that did not end by itself. The log may know it a moment later.
func (v *conversation) lost(err error) string {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	late := time.NewTimer(v.p.patience.reason)
	defer late.Stop()
	for {
		if _, gone := v.p.claimed(v.runner); gone != nil {
			al := v.p.cfg.State.Latest().Alloc(muster.AllocID(v.runner))
			if al != nil && al.Failure != nil && al.Failure.Reason == muster.ReasonOutOfMemory {
				return outOfMemory
			}
			return v.p.problem(context.Background(), "execution", gone).Detail
		}
		select {
		case <-tick.C:
			continue
		case <-v.left:
		case <-late.C:
		}
		why := clip(err.Error())
		if al := v.p.cfg.State.Latest().Alloc(muster.AllocID(v.runner)); al != nil {
			return fmt.Sprintf("the connection to runner %s on node %s was lost, and no reason was reported within %s: %s", v.runner, al.Node, v.p.patience.reason, why)
		}
		return "the execution was ended: " + why
	}
}

// send waits for a client that takes nothing for a long time, but not for ever.
func (v *conversation) send(m said) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(m) // never fails
	ctx, cancel := context.WithTimeout(context.Background(), v.p.patience.stall)
	defer cancel()
	if v.ws.Write(ctx, websocket.MessageText, bytes.TrimSuffix(b.Bytes(), []byte("\n"))) != nil {
		v.gone()
	}
	v.sent.Store(int64(time.Since(v.began)))
}

// last sends the last messages and closes.
func (v *conversation) last(messages ...said) {
	for _, m := range messages {
		v.send(m)
	}
	_ = v.ws.Close(websocket.StatusNormalClosure, "")
}

// receive brings what the client says to the program, until the client has left.
func (v *conversation) receive(ctx context.Context) {
	buf := make([]byte, 8<<10)
	for {
		_, r, err := v.ws.Reader(ctx)
		if err != nil {
			return
		}
		for {
			n, err := r.Read(buf)
			if n > 0 {
				_ = v.x.WriteStdin(buf[:n]) // what the program does not take any more is thrown away
			}
			if err == io.EOF {
				break
			}
			if err != nil {
				return
			}
		}
	}
}

// keepAwake notices by pings that a client has left while its input waits for the program.
func (v *conversation) keepAwake(ctx context.Context) {
	tick := time.NewTicker(v.p.patience.quiet)
	defer tick.Stop()
	for {
		select {
		case <-v.over:
			return
		case <-v.left:
			return
		case <-tick.C:
		}
		if time.Since(v.began)-time.Duration(v.sent.Load()) < v.p.patience.quiet {
			continue
		}
		bounded, cancel := context.WithTimeout(ctx, v.p.patience.quiet)
		err := v.ws.Ping(bounded)
		cancel()
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			v.gone()
			return
		}
	}
}
