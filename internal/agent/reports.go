package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
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
	// reportPace is the least time between two reports of a stream: what changes within it
	// travels together. A change after silence is sent at once.
	reportPace = 4 * time.Millisecond
	// beatEvery leaves some of HeartbeatEvery for the way.
	beatEvery = wire.HeartbeatEvery * 4 / 5 * time.Millisecond
	// measureWait is how long a heartbeat waits for new measurements.
	measureWait = 500 * time.Millisecond
	// writeTimeout ends a stream whose reader takes nothing.
	writeTimeout = 30 * time.Second
	// maxDetail and maxWord bound in bytes, beside contract.MaxMessage, what a report says of one allocation in words that others
	// choose: servers of URLs, registries, commands. A server refuses reports that are larger than it expects, and then the whole node
	// is out of contact.
	maxDetail = 200
	maxWord   = 64
)

// reader is one stream of reports on its way. It keeps which allocations
// changed, not how: a slow reader costs no more than one entry for each.
type reader struct {
	wake chan struct{}

	// guarded by Agent.mu
	dirty map[muster.AllocID]struct{}
	beat  bool
	needs bool
	// condition: it changed. images is the newest of Agent.atHandGen that it was told.
	condition bool
	images    int
}

func (rd *reader) poke() {
	wait.Poke(rd.wake)
}

// report sends reports until the reader or the agent goes.
func (a *Agent) report(w http.ResponseWriter, req *http.Request) {
	ctx := req.Context()
	rd := &reader{wake: make(chan struct{}, 1), dirty: map[muster.AllocID]struct{}{}}
	a.mu.Lock()
	a.readers[rd] = struct{}{}
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		delete(a.readers, rd)
		a.mu.Unlock()
	}()
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

// nextReport takes what the reader has not been told; no news if there is nothing.
func (a *Agent) nextReport(rd *reader, whole bool) (r wire.Report, allocs []*wire.AllocReport, news bool) {
	needs, grants := a.inputs.Needs(), a.grants.needs()
	a.mu.Lock()
	defer a.mu.Unlock()
	if whole {
		for _, al := range a.allocs {
			if al.report != nil {
				allocs = append(allocs, al.report)
			}
		}
	} else {
		for id := range rd.dirty {
			if al := a.allocs[id]; al != nil && al.report != nil {
				allocs = append(allocs, al.report)
			}
		}
	}
	if whole || rd.beat {
		used := a.used
		r.Used, r.FreeDisk = &used, a.freeDisk
	}
	if whole || rd.beat || rd.needs {
		r.Needs, r.NeedGrants = needs, grants
	}
	if whole || rd.beat || rd.condition {
		now := a.condition
		r.Condition = &now
	}
	if whole || rd.beat && rd.images != a.atHandGen {
		names := append([]string{}, a.atHand...) // none is not the same as nothing said
		r.Images, rd.images = &names, a.atHandGen
	}
	news = whole || rd.beat || rd.needs || rd.condition || len(allocs) > 0
	if news {
		r.Boot, r.Seq, r.Whole = a.boot, a.seq.Add(1), whole
	}
	clear(rd.dirty)
	rd.beat, rd.needs, rd.condition = false, false, false
	slices.SortFunc(allocs, func(x, y *wire.AllocReport) int {
		if x.ID < y.ID {
			return -1
		}
		return 1
	})
	return r, allocs, news
}

// bounded is what is said of an allocation, within what a server takes. Records on disk may have longer texts, and so may what an init says.
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

// writeReport writes a report as one line, its allocations one by one: a whole
// report of thousands is never in memory as a whole.
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

// needsAdded tells every reader that a digest must be pushed.
func (a *Agent) needsAdded() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for rd := range a.readers {
		rd.needs = true
		rd.poke()
	}
}

// sample measures what runs and makes every reader send a heartbeat. Measuring
// that takes long holds no heartbeat up: the server would take the node for lost.
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
		a.mu.Lock()
		idle := len(a.readers) == 0
		a.mu.Unlock()
		if idle {
			continue
		}
		if measured == nil || isClosed(measured) {
			done := make(chan struct{})
			measured = done
			a.spawn(func() { defer close(done); a.measure() })
		}
		select {
		case <-ctx.Done():
			return
		case <-measured:
		case <-time.After(measureWait):
		}
		a.mu.Lock()
		for rd := range a.readers {
			rd.beat = true
			rd.poke()
		}
		a.mu.Unlock()
	}
}

func (a *Agent) measure() {
	type running struct {
		al *alloc
		b  *box
	}
	var list []running
	a.mu.Lock()
	for _, al := range a.allocs {
		if al.box != nil && !al.ended {
			al.box.refs++
			list = append(list, running{al, al.box})
		}
	}
	a.mu.Unlock()
	var used wire.Usage
	for _, x := range list {
		usage := usageReport(x.b.sandbox.Usage())
		if usage != nil {
			used.CPUMicros += usage.CPUMicros
			used.Memory += usage.Memory
		}
		a.amend(x.al, usage, size(x.b.sandbox, wire.Stdout), size(x.b.sandbox, wire.Stderr))
		a.drop(x.al, x.b)
	}
	free := journal.FreeDisk(a.cfg.Dir)
	a.mu.Lock()
	a.used, a.freeDisk = used, free
	a.mu.Unlock()
	a.notice()
}

func size(s contract.Sandbox, stream string) wire.StreamReport {
	start, end, err := s.Output(stream).Bounds()
	if err != nil && err != io.EOF {
		return wire.StreamReport{}
	}
	return wire.StreamReport{Size: end, Start: start}
}

// amend adds a measurement to the report of an allocation that still runs, if
// it says anything new. The heartbeat that follows carries it.
func (a *Agent) amend(al *alloc, usage *wire.Usage, stdout, stderr wire.StreamReport) {
	a.mu.Lock()
	defer a.mu.Unlock()
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
	for rd := range a.readers {
		rd.dirty[al.id] = struct{}{}
	}
}
