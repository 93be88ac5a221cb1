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
	"github.com/musterhq/muster/internal/wait"
	wire "github.com/musterhq/muster/internal/wire/agent"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// readyInterval is between two runs of a readiness command, and readyTimeout bounds one, where the
// spec does not say.
const (
	readyInterval = 250 * time.Millisecond
	readyTimeout  = 5 * time.Second
	// readyDetail is the least time between two reports of what the command says.
	readyDetail = 2 * time.Second
	// readyGrace is how much longer than the command's time limit init may take to tell how it
	// ended.
	readyGrace = 5 * time.Second
	// maxReadyWords bounds in bytes what is kept of the command's output.
	maxReadyWords = 200
)

// proveReady runs the readiness command of a sandbox until it passes, and makes that known. A
// sandbox whose command does not pass in time is stopped, and the allocation has failed.
func (al *allocation) proveReady(ctx context.Context, b *box, r *wire.Readiness, grace time.Duration) {
	ctx, cancel := al.untilStop(ctx)
	defer cancel()
	// The time does not count from the sandbox's start, which is a moment of the node's clock: a
	// step of that clock would fail an allocation that is getting ready. An agent that is restarted
	// counts from its own start.
	began, told := time.Now(), time.Time{}
	for {
		why := tryReady(ctx, b.sandbox, r)
		switch {
		case why == nil:
			al.isReady(ctx, b)
			return
		case ctx.Err() != nil || wait.Closed(b.sandbox.Done()):
			return
		case r.GiveUpMillis > 0 && time.Since(began) > wire.Millis(r.GiveUpMillis):
			al.mu.Lock()
			al.unready = contract.Failure(muster.FailureUser, muster.ReasonNotReady, "not ready within %s: %v", wire.Millis(r.GiveUpMillis), why)
			al.mu.Unlock()
			b.sandbox.Stop(grace)
			return
		}
		if time.Since(told) > readyDetail {
			told = time.Now()
			al.amend(func(rep *wire.AllocReport) { rep.Detail = "not ready yet: " + why.Error() })
		}
		wait := wire.Millis(r.IntervalMillis)
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

// isReady writes down and reports that an allocation is ready. A restarted agent then does not run
// the command in a sandbox that is in use.
func (al *allocation) isReady(ctx context.Context, b *box) {
	at := muster.At(time.Now())
	if err := al.dir.Append(journal.Step{Ready: at}); err != nil {
		al.node.log.Warn("that an allocation is ready is not on disk", "alloc", al.id, "error", err)
	}
	al.amend(func(r *wire.AllocReport) { al.ready, r.Ready, r.Detail = at, at, "" })
	al.settle(ctx, b)
}

// tryReady runs the command once; nil if it exits with 0. The answer is the sandbox's own word: a
// sandbox that lies harms only itself.
func tryReady(ctx context.Context, s contract.Sandbox, r *wire.Readiness) error {
	limit := wire.Millis(r.TimeoutMillis)
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

// readySaid is how a readiness command failed, with what it printed, on one line.
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

// whyUnready is the failure of an allocation that was ended because it was not ready in time; nil
// of any other.
func (al *allocation) whyUnready() *muster.Failure {
	al.mu.Lock()
	defer al.mu.Unlock()
	if al.stopping {
		return nil // it was asked to stop before that could end it
	}
	return al.unready
}
