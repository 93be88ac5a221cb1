package agent

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/journal"
	"github.com/musterhq/muster/internal/wait"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// alloc is one allocation that the agent holds, from the set that brought it
// until it is forgotten. Its goroutine is live; all others only signal it.
type alloc struct {
	id  muster.AllocID
	dir journal.AllocDir
	// spec is what to run; nil once it has ended, and when it was found unreadable after a restart. Its goroutine's.
	spec *wire.AllocSpec
	// image is held from before the start to the end; nil if it has none. Its goroutine's.
	image *contract.Image
	// stored: the spec is on disk. found: it was there already when the agent started.
	stored, found bool
	// begins is how often earlier agents marked it as begun.
	begins int
	// exclusive: it runs only while the guard holds.
	exclusive bool
	// ice holds a token: its sandbox is frozen or thawed by one at a time.
	ice chan struct{}
	// calls holds one token: the runtime is called for dir by one at a time.
	calls chan struct{}
	// stop is closed when it shall stop; wanted when a set of this agent's life asked for it to run;
	// opened when its sandbox is there or never will be; done when it has ended.
	stop, wanted, opened, done chan struct{}

	// The rest is guarded by Agent.mu.

	// report is what readers are told, replaced and never changed; nil until the allocation is on disk.
	report   *wire.AllocReport
	runtime  contract.Runtime
	box      *box
	begun    bool // the runtime was asked, so it must never be asked again
	ended    bool
	stopping bool
	asked    bool // wanted is closed

	// ready is when it became ready; 0: it is not.
	ready muster.Time
	// wantFrozen is what the last set said; frozen whether its sandbox stands. noFreezer: it cannot.
	wantFrozen, frozen, noFreezer bool
	// awake is how many use its init.
	awake int
	// unready is why it was stopped before it was ready, unguarded why it was killed when the guard lapsed.
	unready, unguarded *muster.Failure
}

// maxBegins is after how many agents that ended while they began it an allocation is given up: it may be what ends them.
const maxBegins = 3

// box is an open sandbox with the number of those who use it; the last closes it.
type box struct {
	sandbox contract.Sandbox
	refs    int // guarded by Agent.mu
}

func (a *Agent) newAlloc(id muster.AllocID, spec *wire.AllocSpec) *alloc {
	return &alloc{
		id: id, spec: spec, exclusive: spec != nil && spec.Exclusive, dir: journal.OfAlloc(a.cfg.Dir, id),
		ice: make(chan struct{}, 1), calls: make(chan struct{}, 1), stop: make(chan struct{}), wanted: make(chan struct{}),
		opened: make(chan struct{}), done: make(chan struct{}),
	}
}

// live takes an allocation from where it is to its end, or to the agent's.
func (a *Agent) live(ctx context.Context, al *alloc) {
	var b *box
	var end *wire.AllocReport
	if al.begun {
		b, end = a.reattach(ctx, al)
	} else {
		b, end = a.start(ctx, al)
	}
	if b != nil {
		defer a.drop(al, b)
		end = a.watch(ctx, al, b)
	}
	if end != nil {
		a.finish(ctx, al, end)
	}
	// Without an end the agent itself is ending: the next one goes on from what is on disk.
}

// start makes the sandbox. It returns it, or how the allocation ended without
// one, or neither if the agent ends.
func (a *Agent) start(ctx context.Context, al *alloc) (*box, *wire.AllocReport) {
	if al.found {
		// While the agent was away the server may have given it to another node. Only a set says that it is still wanted.
		select {
		case <-ctx.Done():
			return nil, nil
		case <-al.stop:
			return nil, stopped(al)
		case <-al.wanted:
		}
	}
	if !al.stored {
		if gone := a.trash.gone(al.id); gone != nil {
			select {
			case <-gone:
			case <-al.stop:
			case <-ctx.Done():
			}
		}
		if !a.take(ctx, al, a.files) {
			return nil, a.interrupted(ctx, al)
		}
		err := al.dir.Create(al.spec)
		<-a.files
		if err != nil {
			return nil, failed(al, contract.Failure(muster.FailureNode, muster.ReasonNodeFault, "sandbox directory: %v", err))
		}
		al.stored = true
	}
	rt, f := a.check(al.spec)
	if f == nil && al.spec.Image != "" {
		a.publish(al, starting)
		var image *contract.Image
		if image, f = a.openImage(ctx, al); image == nil && f == nil {
			return nil, a.interrupted(ctx, al)
		}
		al.image = image
	}
	if f == nil && len(al.spec.Inputs) > 0 {
		a.publish(al, starting)
		f = a.placeInputs(ctx, al)
	}
	if f != nil {
		return nil, failed(al, f)
	}
	if al.exclusive && !a.guard.Holds() {
		a.publish(al, starting)
		if !a.guard.Await(ctx, al.stop) {
			return nil, a.interrupted(ctx, al)
		}
	}
	select {
	case a.starts <- struct{}{}:
	default:
		// Only what waits is told of: otherwise the next report says that it runs.
		a.publish(al, starting)
		if !a.take(ctx, al, a.starts) {
			return nil, a.interrupted(ctx, al)
		}
	}
	defer func() { <-a.starts }()
	if isClosed(al.stop) || ctx.Err() != nil {
		return nil, a.interrupted(ctx, al)
	}
	return a.begin(ctx, al, rt)
}

// digest of the image, or empty.
func (al *alloc) digest() string {
	if al.image == nil {
		return ""
	}
	return al.image.Digest
}

func starting(r *wire.AllocReport) { r.Status = muster.AllocStarting }

// take gets a token for the allocation; false if it is to stop or the agent ends first.
func (a *Agent) take(ctx context.Context, al *alloc, tokens chan struct{}) bool {
	select {
	case <-al.stop:
		return false
	case <-ctx.Done():
		return false
	default:
	}
	select {
	case tokens <- struct{}{}:
		return true
	case <-al.stop:
		return false
	case <-ctx.Done():
		return false
	}
}

// interrupted is the end of an allocation whose start was broken off: stopped,
// or none if the agent ends.
func (a *Agent) interrupted(ctx context.Context, al *alloc) *wire.AllocReport {
	if ctx.Err() != nil {
		return nil
	}
	return stopped(al)
}

// begin asks the runtime, once and never again.
func (a *Agent) begin(ctx context.Context, al *alloc, rt contract.Runtime) (*box, *wire.AllocReport) {
	c, err := al.config()
	if err == nil && al.image != nil {
		if f := a.contain(ctx, al, &c, al.image); f != nil {
			return nil, failed(al, f)
		}
	}
	if err == nil {
		err = al.dir.Append(journal.Step{Begun: &journal.Begun{Runtime: rt.Name(), At: muster.At(time.Now()), Image: al.digest()}})
	}
	if err != nil {
		return nil, failed(al, contract.Failure(muster.FailureNode, muster.ReasonNodeFault, "sandbox directory: %v", err))
	}
	limit := startTimeout
	a.mu.Lock()
	if al.exclusive {
		// Looked at under the lock: from here on the guard's watch sees it.
		left, fence := a.guard.Left()
		if left <= 0 {
			a.mu.Unlock()
			return nil, failed(al, a.lapsed(fence))
		}
		limit = min(limit, left)
	}
	al.begun, al.runtime = true, rt
	a.mu.Unlock()
	if al.exclusive {
		a.guard.Keep()
	}
	// A start that is under way when the agent ends is finished: half of one would be found dead by the next.
	startCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	al.calls <- struct{}{}
	sandbox, err := rt.Start(startCtx, c)
	<-al.calls
	if err != nil {
		var f *muster.Failure
		if !errors.As(err, &f) {
			f = contract.Failure(muster.FailureNode, muster.ReasonNodeFault, "runtime %s: %v", rt.Name(), err)
		}
		return nil, failed(al, f)
	}
	if err := al.dir.Append(journal.Step{Ran: muster.At(sandbox.Started())}); err != nil {
		a.log.Warn("that an allocation runs is not on disk", "alloc", al.id, "error", err) // a restarted agent finds it all the same
	}
	return a.open(al, sandbox), nil
}

// reattach finds the sandbox that an earlier agent started.
func (a *Agent) reattach(ctx context.Context, al *alloc) (*box, *wire.AllocReport) {
	began := time.Now()
	for delay := 50 * time.Millisecond; ; delay = min(2*delay, 5*time.Second) {
		sandbox, err := a.attach(ctx, al)
		if err == nil {
			return a.open(al, sandbox), nil
		}
		if errors.Is(err, contract.ErrNoSandbox) || time.Since(began) > reattachFor {
			// What cannot be found may still be there in part. It must be gone before the server
			// may start the member elsewhere.
			if e := a.remove(ctx, al); e == nil {
				if errors.Is(err, contract.ErrNoSandbox) && al.spec != nil && al.begins < maxBegins {
					return a.startAgain(ctx, al)
				}
				return nil, failed(al, contract.Failure(muster.FailureNode, muster.ReasonSandboxDied, "its sandbox could not be found by the restarted agent: %v", err))
			} else {
				err = e
			}
		}
		a.log.Warn("sandbox of an earlier agent is not at hand yet", "alloc", al.id, "error", err)
		if !wait.For(ctx, delay) {
			return nil, nil
		}
	}
}

// startAgain begins an allocation whose agent was killed between its mark and the making of its
// sandbox: nothing of it ever ran. It is no failure of the node.
func (a *Agent) startAgain(ctx context.Context, al *alloc) (*box, *wire.AllocReport) {
	a.log.Info("the agent before was ended as it was about to start it: started again", "alloc", al.id)
	al.image.Free()
	al.image = nil
	a.mu.Lock()
	al.begun = false
	a.mu.Unlock()
	return a.start(ctx, al)
}

// attach calls Runtime.Attach with a deadline, by one at a time.
func (a *Agent) attach(ctx context.Context, al *alloc) (contract.Sandbox, error) {
	ctx, cancel := context.WithTimeout(ctx, attachTimeout)
	defer cancel()
	select {
	case al.calls <- struct{}{}:
		defer func() { <-al.calls }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return al.runtime.Attach(ctx, string(al.dir))
}

func (a *Agent) remove(ctx context.Context, al *alloc) error {
	ctx, cancel := context.WithTimeout(ctx, attachTimeout)
	defer cancel()
	al.calls <- struct{}{}
	defer func() { <-al.calls }()
	return al.runtime.Remove(ctx, string(al.dir))
}

// watch waits for the end of a running sandbox and stops it when asked.
func (a *Agent) watch(ctx context.Context, al *alloc, b *box) *wire.AllocReport {
	a.running(ctx, al, b)
	stop := al.stop
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-stop:
			stop = nil
			grace := defaultGrace
			if al.spec != nil {
				grace = millis(al.spec.KillGraceMillis)
			}
			if a.whyUnguarded(al) != nil {
				grace = 0
			}
			b.sandbox.Stop(grace)
		case <-b.sandbox.Done():
			return a.result(ctx, al, b)
		}
	}
}

// running makes it known that a sandbox runs, and sees to what is to become of it then.
func (a *Agent) running(ctx context.Context, al *alloc, b *box) {
	started, stands := muster.At(b.sandbox.Started()), contract.Frozen(b.sandbox)
	a.mu.Lock()
	if al.ready == 0 && (al.spec == nil || al.spec.Ready == nil) {
		al.ready = started
	}
	al.frozen = stands
	if stands && !al.asked {
		al.wantFrozen = true // an earlier agent was told so; nobody has said otherwise
	}
	ready := al.ready
	a.publishLocked(al, func(r *wire.AllocReport) {
		r.Status, r.Started, r.Detail, r.Image = muster.AllocRunning, started, "", al.digest()
		r.Ready, r.Frozen = ready, stands
	})
	a.mu.Unlock()
	switch {
	case ready != 0:
		a.settle(ctx, al, b)
	case len(al.spec.Ready.Command) > 0:
		r, grace := al.spec.Ready, millis(al.spec.KillGraceMillis)
		if held := a.hold(al); held != nil {
			a.spawn(func() {
				defer a.drop(al, held)
				a.proveReady(ctx, al, held, r, grace)
			})
		}
	}
}

// result is the final report of a sandbox that has ended; nil if the agent ends first.
func (a *Agent) result(ctx context.Context, al *alloc, b *box) *wire.AllocReport {
	res := b.sandbox.Result()
	r := &wire.AllocReport{
		ID: al.id, Status: muster.AllocEnded, ExitCode: res.ExitCode, Signal: res.Signal,
		Started: muster.At(res.Started), Ended: muster.At(res.Ended),
		Usage: usageReport(b.sandbox.Usage()), OutputLost: res.OutputLost,
		Stdout: a.wholeStream(al, b.sandbox, wire.Stdout), Stderr: a.wholeStream(al, b.sandbox, wire.Stderr),
	}
	if r.Started == 0 {
		r.Started = muster.At(b.sandbox.Started())
	}
	switch {
	case res.Stopped && a.whyUnguarded(al) != nil:
		r.Outcome, r.Failure = muster.OutcomeFailed, a.whyUnguarded(al)
		return r
	case res.Stopped && a.whyUnready(al) != nil:
		r.Outcome, r.Failure = muster.OutcomeFailed, a.whyUnready(al)
		return r
	case res.Stopped:
		r.Outcome = muster.OutcomeStopped
		return r
	case res.Failure != nil:
		r.Outcome, r.Failure = muster.OutcomeFailed, res.Failure
		return r
	}
	r.Outcome = muster.OutcomeSucceeded
	if al.spec == nil || len(al.spec.Outputs) == 0 {
		return r
	}
	outputs, f, ok := a.collect(ctx, al)
	switch {
	case !ok && ctx.Err() != nil:
		return nil
	case !ok:
		r.Outcome = muster.OutcomeStopped
	case f != nil:
		r.Outcome, r.Failure = muster.OutcomeFailed, f
	default:
		r.Outputs = outputs
	}
	return r
}

// finish makes the end known, first to the disk.
func (a *Agent) finish(ctx context.Context, al *alloc, end *wire.AllocReport) {
	if gone := a.trash.gone(al.id); gone != nil && !al.stored {
		select {
		case <-gone:
		case <-ctx.Done():
			return
		}
	}
	end.Image = al.digest()
	a.touched(end)
	a.files <- struct{}{}
	var err error
	if !al.stored {
		err = al.dir.Create(al.spec)
	}
	if err == nil {
		err = al.dir.Append(journal.Step{End: end})
	}
	<-a.files
	if err != nil {
		// Told all the same: a restarted agent would find the result again from the sandbox.
		a.log.Error("result of an allocation is not on disk", "alloc", al.id, "error", err)
	}
	if isolated(al.spec) {
		a.releaseNetwork(ctx, al.id)
	}
	al.image.Free()
	al.image = nil
	al.spec = nil
	a.publish(al, func(r *wire.AllocReport) {
		*r = *end
		al.ended = true
	})
	close(al.done)
	if !isClosed(al.opened) {
		close(al.opened)
	}
}

// stopped and failed are ends without a sandbox.
func stopped(al *alloc) *wire.AllocReport {
	return &wire.AllocReport{ID: al.id, Status: muster.AllocEnded, Outcome: muster.OutcomeStopped, Ended: muster.At(time.Now())}
}

func failed(al *alloc, f *muster.Failure) *wire.AllocReport {
	return &wire.AllocReport{ID: al.id, Status: muster.AllocEnded, Outcome: muster.OutcomeFailed, Failure: f, Ended: muster.At(time.Now())}
}

// whyUnready is why it was ended because it was not ready in time; nil if that is not so.
func (a *Agent) whyUnready(al *alloc) *muster.Failure {
	a.mu.Lock()
	defer a.mu.Unlock()
	if al.stopping {
		return nil // it was asked to stop before that could end it
	}
	return al.unready
}

// publish changes an allocation's report and tells every reader.
func (a *Agent) publish(al *alloc, change func(*wire.AllocReport)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.publishLocked(al, change)
}

func (a *Agent) publishLocked(al *alloc, change func(*wire.AllocReport)) {
	r := &wire.AllocReport{ID: al.id}
	if al.report != nil {
		*r = *al.report
	}
	change(r)
	al.report = r
	for rd := range a.readers {
		rd.dirty[al.id] = struct{}{}
		rd.poke()
	}
}

// open shares a sandbox; the caller holds one use of it.
func (a *Agent) open(al *alloc, sandbox contract.Sandbox) *box {
	b := &box{sandbox: sandbox, refs: 1}
	a.mu.Lock()
	al.box = b
	a.mu.Unlock()
	close(al.opened)
	return b
}

// hold is one more use of an open sandbox, or nil if it is not open.
func (a *Agent) hold(al *alloc) *box {
	a.mu.Lock()
	defer a.mu.Unlock()
	if al.box != nil {
		al.box.refs++
	}
	return al.box
}

// drop ends one use; the last closes it.
func (a *Agent) drop(al *alloc, b *box) {
	a.mu.Lock()
	b.refs--
	last := b.refs == 0
	if last && al.box == b {
		al.box = nil
	}
	a.mu.Unlock()
	if last {
		if err := b.sandbox.Close(); err != nil {
			a.log.Warn("sandbox", "alloc", al.id, "error", err)
		}
	}
}

// wholeStream reports on a stream that has ended, with its bytes if they are few.
func (a *Agent) wholeStream(al *alloc, s contract.Sandbox, stream string) wire.StreamReport {
	out := s.Output(stream)
	start, end, err := out.Bounds()
	if err != nil {
		a.log.Warn("output", "alloc", al.id, "stream", stream, "error", err)
		return wire.StreamReport{}
	}
	r := wire.StreamReport{Size: end, Start: start}
	if start == 0 && end > 0 && end <= wire.InlineLimit {
		buf := make([]byte, end)
		if _, err := io.ReadFull(io.NewSectionReader(out, 0, end), buf); err == nil {
			r.Inline = buf
		}
	}
	return r
}

func usageReport(u contract.Usage) *wire.Usage {
	if u == (contract.Usage{}) {
		return nil
	}
	return &wire.Usage{CPUMicros: u.CPU.Microseconds(), Memory: u.Memory}
}

func millis(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }
