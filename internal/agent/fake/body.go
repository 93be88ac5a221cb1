package fake

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
)

// untilPause is how often "until" looks.
const untilPause = 10 * time.Millisecond

// body is a sandbox: what would be processes.
type body struct {
	config  contract.SandboxConfig
	steps   []step
	started time.Time
	stdout  log
	stderr  log

	// term and killed are closed when TERM and KILL come.
	term, killed chan struct{}
	done         chan struct{}
	// result is set before done is closed.
	result contract.Result

	mu       sync.Mutex
	used     contract.Usage
	stopped  bool
	timedOut bool
	over     bool
	timer    *time.Timer
	killAt   time.Time
	// frozen: nothing goes on until thawed is closed.
	frozen bool
	thawed chan struct{}
}

func newBody(c contract.SandboxConfig, steps []step) *body {
	b := &body{
		config: c, steps: steps, started: time.Now(),
		term: make(chan struct{}), killed: make(chan struct{}), done: make(chan struct{}),
		used: contract.Usage{Memory: muster.MiB},
	}
	b.stdout.limit, b.stderr.limit = c.OutputLimit, c.OutputLimit
	return b
}

// ending is how a step ends everything; nil means the next step.
type ending struct {
	exit   int
	signal syscall.Signal
	hogged bool
	died   bool
}

func (b *body) run() {
	var limit *time.Timer
	if b.config.Timeout > 0 {
		limit = time.AfterFunc(b.config.Timeout, func() { b.end(b.config.KillGrace, false) })
	}
	how := &ending{}
	for _, s := range b.steps {
		e := b.stand()
		if e == nil {
			e = s.do(b)
		}
		if e != nil {
			how = e
			break
		}
	}
	if limit != nil {
		limit.Stop()
	}
	b.mu.Lock()
	b.over = true
	if b.timer != nil {
		b.timer.Stop()
	}
	b.result = b.conclude(how)
	b.mu.Unlock()
	close(b.done)
}

// conclude needs mu held.
func (b *body) conclude(how *ending) contract.Result {
	r := contract.Result{ExitCode: how.exit, Stopped: b.stopped, Started: b.started, Ended: time.Now()}
	say := fmt.Sprintf("the command exited with code %d", how.exit)
	if how.signal != 0 {
		r.Signal = signalName(how.signal)
		say = "the command was ended by " + r.Signal
	}
	switch {
	case how.died:
		r.Failure = failure(muster.FailureNode, muster.ReasonSandboxDied, "the sandbox died: its init is gone without a result")
	case b.timedOut:
		r.Failure = failure(muster.FailureUser, muster.ReasonTimeout, "over its time limit of %s; %s", b.config.Timeout, say)
	case how.exit == 0 && how.signal == 0:
	case b.stopped:
		r.Failure = failure(muster.FailureUser, muster.ReasonStopped, "stopped; %s", say)
	case how.hogged:
		r.Failure = failure(muster.FailureUser, muster.ReasonOutOfMemory, "over its memory limit of %s; %s", b.config.Resources.Memory, say)
	case how.signal != 0:
		r.Failure = failure(muster.FailureUser, muster.ReasonSignal, "%s", say)
	default:
		r.Failure = failure(muster.FailureUser, muster.ReasonExit, "%s", say)
	}
	return r
}

func (b *body) stop(grace time.Duration) { b.end(grace, true) }

// end sends TERM now and KILL after grace; a later, shorter grace counts.
func (b *body) end(grace time.Duration, asked bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over || (!asked && b.stopped) {
		return
	}
	if asked {
		b.thawLocked()
		b.stopped = b.stopped || !b.timedOut
	} else {
		b.timedOut = true
	}
	at := time.Now().Add(max(grace, 0))
	switch {
	case grace <= 0:
		b.killLocked()
	case b.timer == nil:
		closeOnce(b.term)
		b.timer, b.killAt = time.AfterFunc(grace, b.kill), at
	case at.Before(b.killAt):
		b.timer.Reset(grace)
		b.killAt = at
	}
}

func (b *body) kill() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.killLocked()
}

func (b *body) killLocked() { closeOnce(b.killed) }

// closeOnce needs whoever closes to hold a lock.
func closeOnce(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}

// sleep waits; onTerm is what TERM does, nil if it is ignored.
func (b *body) sleep(d time.Duration, onTerm *ending) *ending {
	term := b.term
	if onTerm == nil {
		term = nil
	}
	// What has come already counts first.
	select {
	case <-b.killed:
		return &ending{signal: unix.SIGKILL}
	default:
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-b.killed:
		return &ending{signal: unix.SIGKILL}
	case <-term:
		return onTerm
	case <-timer.C:
		return b.stand()
	}
}

func (b *body) until(file string) *ending {
	path := filepath.Join(b.config.Work, file)
	for {
		if _, err := os.Stat(path); err == nil {
			return nil
		}
		if e := b.sleep(untilPause, &ending{signal: unix.SIGTERM}); e != nil {
			return e
		}
	}
}

func (b *body) busy(d time.Duration) *ending {
	for d > 0 {
		part := min(d, untilPause)
		if e := b.sleep(part, &ending{signal: unix.SIGTERM}); e != nil {
			return e
		}
		b.mu.Lock()
		b.used.CPU += part
		b.mu.Unlock()
		d -= part
	}
	return nil
}

func (b *body) printEnv() {
	b.stdout.write([]byte(strings.Join(b.config.Env, "\n") + "\n"))
}

func (b *body) writeFile(name, text string) *ending {
	if err := os.WriteFile(filepath.Join(b.config.Work, name), []byte(text), 0o600); err != nil {
		b.stderr.write([]byte(err.Error() + "\n"))
		return &ending{exit: 1}
	}
	return nil
}
