package agent

import (
	"context"
	"io"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/journal"
	"github.com/musterhq/muster/internal/wait"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// publish changes an allocation's report and tells every reader.
func (al *allocation) publish(change func(*wire.AllocReport)) {
	al.mu.Lock()
	defer al.mu.Unlock()
	al.publishLocked(change)
}

func (al *allocation) publishLocked(change func(*wire.AllocReport)) {
	r := &wire.AllocReport{ID: al.id}
	if al.report != nil {
		*r = *al.report
	}
	change(r)
	al.report = r
	al.node.reporter.changed(al.id, true)
}

// amend is publish, unless the allocation has ended. change runs under mu.
func (al *allocation) amend(change func(*wire.AllocReport)) {
	al.mu.Lock()
	defer al.mu.Unlock()
	if !al.ended {
		al.publishLocked(change)
	}
}

func starting(r *wire.AllocReport) { r.Status = muster.AllocStarting }

// told is what readers are told now; nil if nothing.
func (al *allocation) told() *wire.AllocReport {
	al.mu.Lock()
	defer al.mu.Unlock()
	return al.report
}

// measured adds a measurement to the report of an allocation that still runs, if it says anything
// new. The heartbeat that follows carries it.
func (al *allocation) measured(usage *wire.Usage, stdout, stderr wire.StreamReport) {
	al.mu.Lock()
	defer al.mu.Unlock()
	if al.ended || al.report == nil || al.report.Status != muster.AllocRunning {
		return
	}
	old := al.report
	same := old.Stdout.Size == stdout.Size && old.Stderr.Size == stderr.Size
	if usage != nil && (old.Usage == nil || *old.Usage != *usage) {
		same = false
	}
	if same {
		return
	}
	r := *old
	r.Usage, r.Stdout, r.Stderr = usage, stdout, stderr
	al.report = &r
	al.node.reporter.changed(al.id, false)
}

// result is the final report of a sandbox that has ended; nil if the agent ends first.
func (al *allocation) result(ctx context.Context, b *box) *wire.AllocReport {
	res := b.sandbox.Result()
	r := &wire.AllocReport{
		ID: al.id, Status: muster.AllocEnded, ExitCode: res.ExitCode, Signal: res.Signal,
		Started: muster.At(res.Started), Ended: muster.At(res.Ended),
		Usage: usageReport(b.sandbox.Usage()), OutputLost: res.OutputLost,
		Stdout: al.wholeStream(b.sandbox, wire.Stdout), Stderr: al.wholeStream(b.sandbox, wire.Stderr),
	}
	if r.Started == 0 {
		r.Started = muster.At(b.sandbox.Started())
	}
	switch {
	case res.Stopped && al.whyUnguarded() != nil:
		r.Outcome, r.Failure = muster.OutcomeFailed, al.whyUnguarded()
		return r
	case res.Stopped && al.whyUnready() != nil:
		r.Outcome, r.Failure = muster.OutcomeFailed, al.whyUnready()
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
	list, f, ok := al.collect(ctx)
	switch {
	case !ok && ctx.Err() != nil:
		return nil
	case !ok:
		r.Outcome = muster.OutcomeStopped
	case f != nil:
		r.Outcome, r.Failure = muster.OutcomeFailed, f
	default:
		r.Outputs = list
	}
	return r
}

// finish makes the end known, first to the disk.
func (al *allocation) finish(ctx context.Context, end *wire.AllocReport) {
	n := al.node
	if gone := n.trash.gone(al.id); gone != nil && !al.stored {
		select {
		case <-gone:
		case <-ctx.Done():
			return
		}
	}
	end.Image = al.digest()
	n.noticeEnd(end)
	n.files <- struct{}{}
	var err error
	if !al.stored {
		err = al.dir.Create(al.spec)
	}
	if err == nil {
		err = al.dir.Append(journal.Step{End: end})
	}
	<-n.files
	if err != nil {
		// It is reported all the same: a restarted agent would find the result again from the
		// sandbox.
		n.log.Error("result of an allocation is not on disk", "alloc", al.id, "error", err)
	}
	if isolated(al.spec) {
		n.releaseNetwork(ctx, al.id)
	}
	al.image.Free()
	al.image = nil
	al.spec = nil
	al.publish(func(r *wire.AllocReport) {
		*r = *end
		al.ended = true
	})
	close(al.done)
	if !wait.Closed(al.opened) {
		close(al.opened)
	}
}

// wholeStream reports on a stream that has ended, with its bytes if they are few.
func (al *allocation) wholeStream(s contract.Sandbox, stream string) wire.StreamReport {
	out := s.Output(stream)
	start, end, err := out.Bounds()
	if err != nil {
		al.node.log.Warn("output", "alloc", al.id, "stream", stream, "error", err)
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

// streamSize is how much there is of a stream that may still grow.
func streamSize(s contract.Sandbox, stream string) wire.StreamReport {
	start, end, err := s.Output(stream).Bounds()
	if err != nil && err != io.EOF {
		return wire.StreamReport{}
	}
	return wire.StreamReport{Size: end, Start: start}
}

func usageReport(u contract.Usage) *wire.Usage {
	if u == (contract.Usage{}) {
		return nil
	}
	return &wire.Usage{CPUMicros: u.CPU.Microseconds(), Memory: u.Memory}
}
