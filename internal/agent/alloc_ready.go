package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/journal"
	wire "github.com/musterhq/muster/internal/wire/agent"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// Times of a readiness command where the spec does not say.
const (
	readyInterval = 250 * time.Millisecond
	readyTimeout  = 5 * time.Second
	// readyDetail is the least time between two reports of what it says.
	readyDetail = 2 * time.Second
	// readyGrace is how much longer than its time limit init may take to say so.
	readyGrace = 5 * time.Second
	// maxReadyWords bounds what is kept of its output.
	maxReadyWords = 200
)

// proveReady runs the readiness command of a sandbox until it passes, and makes that known. One
// that does not in time is stopped, and has failed.
func (al *allocation) proveReady(ctx context.Context, b *box, r *wire.Readiness, grace time.Duration) {
	ctx, cancel := al.untilStop(ctx)
	defer cancel()
	// Not since the sandbox's start, which is a time of the node's clock: a step of that clock
	// would fail what is getting ready. An agent that is restarted begins to count again.
	began, told := time.Now(), time.Time{}
	for {
		why := tryReady(ctx, b.sandbox, r)
		switch {
		case why == nil:
			al.isReady(ctx, b)
			return
		case ctx.Err() != nil || isClosed(b.sandbox.Done()):
			return
		case r.GiveUpMillis > 0 && time.Since(began) > millis(r.GiveUpMillis):
			al.mu.Lock()
			al.unready = contract.Failure(muster.FailureUser, muster.ReasonNotReady, "not ready within %s: %v", millis(r.GiveUpMillis), why)
			al.mu.Unlock()
			b.sandbox.Stop(grace)
			return
		}
		if time.Since(told) > readyDetail {
			told = time.Now()
			al.amend(func(rep *wire.AllocReport) { rep.Detail = "not ready yet: " + why.Error() })
		}
		wait := millis(r.IntervalMillis)
		if wait <= 0 {
			wait = readyInterval
		}
		select {
		case <-ctx.Done():
			return
		case <-b.sandbox.Done():
			return
		case <-time.After(wait):
		}
	}
}

// isReady writes down that an allocation is ready, so that a restarted agent does not run the
// command in a sandbox that is in use, and tells it.
func (al *allocation) isReady(ctx context.Context, b *box) {
	at := muster.At(time.Now())
	if err := al.dir.Append(journal.Step{Ready: at}); err != nil {
		al.node.log.Warn("that an allocation is ready is not on disk", "alloc", al.id, "error", err)
	}
	al.amend(func(r *wire.AllocReport) { al.ready, r.Ready, r.Detail = at, at, "" })
	al.settle(ctx, b)
}

// tryReady runs the command once; nil if it exits with 0. What init says is the sandbox's own word:
// it harms only itself.
func tryReady(ctx context.Context, s contract.Sandbox, r *wire.Readiness) error {
	limit := millis(r.TimeoutMillis)
	if limit <= 0 {
		limit = readyTimeout
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit+readyGrace, errors.New("init says nothing"))
	defer cancel()
	conn, err := contract.Connect(ctx, s)
	if err != nil {
		return err
	}
	x, err := initwire.StartExec(ctx, conn, &initwire.Exec{Command: r.Command, Timeout: limit, KillGrace: time.Second})
	if err != nil {
		return err
	}
	defer func() { _ = x.Close() }()
	defer context.AfterFunc(ctx, func() { _ = x.Close() })()
	var words []byte
	for {
		_, data, ended, err := x.Next()
		switch {
		case err != nil && ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return err
		case ended == nil:
			words = append(words, data[:min(len(data), maxReadyWords-len(words))]...)
			continue
		case ended.TimedOut:
			return fmt.Errorf("its readiness command took longer than %s", limit)
		case ended.Signal != 0 || ended.Exit != 0:
			return fmt.Errorf("its readiness command %s", readySaid(ended, string(words)))
		}
		return nil
	}
}

func readySaid(e *initwire.ExecEnded, words string) string {
	how := fmt.Sprintf("exited with code %d", e.Exit)
	if e.Signal != 0 {
		how = fmt.Sprintf("was ended by signal %d", e.Signal)
	}
	words = strings.Join(strings.Fields(strings.ToValidUTF8(words, "?")), " ")
	if words == "" {
		return how
	}
	return how + ": " + words
}

// whyUnready is why it was ended because it was not ready in time; nil if that is not so.
func (al *allocation) whyUnready() *muster.Failure {
	al.mu.Lock()
	defer al.mu.Unlock()
	if al.stopping {
		return nil // it was asked to stop before that could end it
	}
	return al.unready
}
