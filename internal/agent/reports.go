package agent

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/journal"
	"github.com/musterhq/muster/internal/wait"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

const (
	// reportPace is the least time between two reports of a stream. Changes within it travel
	// together; a change after a pause is sent at once.
	reportPace = 4 * time.Millisecond
	// beatEvery is a little less than the server expects, as a report takes time to arrive.
	beatEvery = wire.HeartbeatMillis * 4 / 5 * time.Millisecond
	// measureWait is how long a heartbeat waits for new measurements.
	measureWait = 500 * time.Millisecond
	// writeTimeout ends a stream whose reader takes nothing.
	writeTimeout = 30 * time.Second
	// maxDetail and maxWord bound in bytes, beside contract.MaxMessage, what a report says of one
	// allocation in words that others choose: servers of URLs, registries, commands. A server
	// refuses reports that are larger than it expects, and then the whole node is out of contact.
	maxDetail = 200
	maxWord   = 64
)

// report sends reports, the first one whole, until the reader or the agent ends.
func (a *Agent) report(w http.ResponseWriter, req *http.Request) {
	ctx := req.Context()
	rd := a.node.reporter.join()
	defer a.node.reporter.leave(rd)
	w.Header().Set("Content-Type", "application/x-ndjson")
	control := http.NewResponseController(w)
	buf := bufio.NewWriterSize(w, 32<<10)
	pace := time.NewTimer(0)
	defer pace.Stop()
	for whole := true; ; whole = false {
		if r, allocs, news := a.nextReport(rd, whole); news {
			_ = control.SetWriteDeadline(time.Now().Add(writeTimeout))
			if writeReport(buf, r, allocs) != nil || buf.Flush() != nil || control.Flush() != nil {
				return
			}
			pace.Reset(reportPace)
			select {
			case <-ctx.Done():
				return
			case <-pace.C:
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-rd.wake:
		}
	}
}

// nextReport is what the reader has not been told; it is no news if there is nothing.
func (a *Agent) nextReport(rd *reader, whole bool) (r wire.Report, allocs []*wire.AllocReport, news bool) {
	digests, grants := a.node.inputs.Needs(), a.grants.needs()
	// The set's mutex is held to the end: of two readers' reports the one with the later number is
	// never the older one.
	a.mu.Lock()
	defer a.mu.Unlock()
	r, dirty, needs, news := a.node.reporter.next(rd, whole)
	if needs {
		r.Needs, r.NeedGrants = digests, grants
	}
	if whole {
		for _, al := range a.allocs {
			if told := al.told(); told != nil {
				allocs = append(allocs, told)
			}
		}
	} else {
		for _, id := range dirty {
			al := a.allocs[id]
			if al == nil {
				continue // forgotten meanwhile
			}
			if told := al.told(); told != nil {
				allocs = append(allocs, told)
			}
		}
	}
	if news = news || len(allocs) > 0; news {
		r.Run, r.Seq, r.Whole = a.run, a.seq.Add(1), whole
	}
	slices.SortFunc(allocs, func(x, y *wire.AllocReport) int { return cmp.Compare(x.ID, y.ID) })
	return r, allocs, news
}

// bounded is the report of an allocation, with its texts cut to what a server takes. Journals of
// earlier versions may have longer texts, and so may what an init says.
func bounded(r *wire.AllocReport) *wire.AllocReport {
	long := r.Failure != nil && (len(r.Failure.Message) > contract.MaxMessage || len(r.Failure.Reason) > maxWord || len(r.Failure.Class) > maxWord)
	if !long && len(r.Detail) <= maxDetail && len(r.Signal) <= maxWord && len(r.Image) <= 2*maxWord {
		return r
	}
	out := *r
	out.Detail, out.Signal, out.Image = muster.Truncate(r.Detail, maxDetail), muster.Truncate(r.Signal, maxWord), muster.Truncate(r.Image, 2*maxWord)
	if f := r.Failure; f != nil {
		out.Failure = &muster.Failure{Message: muster.Truncate(f.Message, contract.MaxMessage),
			Class: muster.FailureClass(muster.Truncate(string(f.Class), maxWord)), Reason: muster.Reason(muster.Truncate(string(f.Reason), maxWord))}
	}
	return &out
}

// writeReport writes a report as one line, its allocations one by one: a report of thousands is
// never in memory at once.
func writeReport(w *bufio.Writer, r wire.Report, allocs []*wire.AllocReport) error {
	head, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if len(allocs) > 0 {
		if _, err := w.Write(head[:len(head)-1]); err != nil {
			return err
		}
		sep := `,"allocs":[`
		for _, al := range allocs {
			b, err := json.Marshal(bounded(al))
			if err != nil {
				return err
			}
			if _, err := w.WriteString(sep); err != nil {
				return err
			}
			if _, err := w.Write(b); err != nil {
				return err
			}
			sep = ","
		}
		head = []byte("]}")
	}
	if _, err := w.Write(head); err != nil {
		return err
	}
	return w.WriteByte('\n')
}

// sample measures what runs and makes every reader send a heartbeat. A measurement that takes long
// does not delay the heartbeat: the server would take the node for lost.
func (a *Agent) sample(ctx context.Context) {
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	var measured chan struct{} // of the measurement under way
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if a.node.reporter.idle() {
			continue
		}
		if measured == nil || wait.Closed(measured) {
			done := make(chan struct{})
			measured = done
			a.node.crew.spawn(func() { defer close(done); a.measure() })
		}
		select {
		case <-ctx.Done():
			return
		case <-measured:
		case <-time.After(measureWait):
		}
		a.node.reporter.beat()
	}
}

// measure asks every sandbox that runs what it uses.
func (a *Agent) measure() {
	var used wire.Usage
	for _, al := range a.list() {
		if al.progress().ended {
			continue
		}
		b := al.hold()
		if b == nil {
			continue
		}
		usage := usageReport(b.sandbox.Usage())
		if usage != nil {
			used.CPUMicros += usage.CPUMicros
			used.Memory += usage.Memory
		}
		al.measured(usage, streamSize(b.sandbox, wire.Stdout), streamSize(b.sandbox, wire.Stderr))
		al.drop(b)
	}
	a.node.reporter.measured(used, journal.FreeDisk(a.cfg.Dir))
	a.node.notice()
}
