package jobs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/cmd/muster/internal/cli"
)

// follower follows one version of a job to its end: it learns of its allocations
// from events, prints their output while it is made, and goes on over restarts of
// the server. Its fields are set before follow.
type follower struct {
	cl      *client.Client
	key     muster.JobKey
	uid     string
	version uint64
	out     *printer
	index   int  // only this member's; -1 for all
	notes   bool // tell of attempts that failed
	// detail, if set, is told what the start of an allocation is at; "" when it runs.
	detail func(text string)

	// All below belongs to follow's goroutine.
	job      *api.Job   // as it was last told
	last     *api.Alloc // the newest attempt that was told
	tracked  map[string]*tracked
	previous map[int]*tracked // by member: the attempt seen last
	open     int              // tracked ones that have not ended
	waiting  []*tracked       // running, but all places are taken
	ended    []*tracked       // ended before they were read
	live     int              // read while they run
	draining int              // read after they have ended
	done     chan *tracked
	told     int
}

const (
	// maxLive is how many members are read while they run; others, when they have ended.
	maxLive = 64
	// maxDraining is how many are read at once after they have ended: that is quick.
	maxDraining = 8
	// settle is how long one of many must have run before it is read: those that
	// are shorter print little, and streams of their own would cost more than they show.
	settle = 100 * time.Millisecond
	// maxTold is how many failed attempts are told one by one.
	maxTold = 20
)

// tracked is an allocation whose output is to be printed.
type tracked struct {
	id       muster.AllocID
	index    int
	previous *tracked // of the same member: its output comes first
	drain    bool     // read after it has ended

	alloc   api.Alloc     // not written any more once over is closed
	over    chan struct{} // closed when it has ended
	taken   bool          // somebody reads it, has read it, or need not
	read    bool          // its reader is done
	untold  bool          // it has ended, and its failure is told when it was read
	queued  bool          // in waiting
	printed chan struct{} // closed when all of it is printed
}

// news is what the watcher tells.
type news struct {
	event  *api.Event
	job    *api.Job    // with allocs: what there is, at a time when events were not to be had
	allocs []api.Alloc // of the job, all that are kept
	err    error
}

// follow returns when the job has ended and its output is printed. After is where
// events of it begin; "" if that is not known. For each signal interrupted is asked whether to go on.
func (f *follower) follow(ctx context.Context, after string, signals <-chan os.Signal, interrupted func() bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	f.tracked, f.previous, f.done = map[string]*tracked{}, map[int]*tracked{}, make(chan *tracked)
	told := make(chan news)
	go f.watch(ctx, after, told)
	for {
		f.pump(ctx)
		over := f.job != nil && f.job.Stage == string(muster.JobEnded) && f.open == 0
		if over && f.live+f.draining+len(f.ended) == 0 {
			return nil
		}
		if over {
			told = nil // there is nothing more to know
		}
		select {
		case n := <-told:
			if n.err != nil {
				return n.err
			}
			if err := f.take(n); err != nil {
				return err
			}
		case t := <-f.done:
			if t.drain {
				f.draining--
			} else {
				f.live--
			}
			if t.read = true; t.untold {
				t.untold = false
				f.note(&t.alloc)
			}
			close(t.printed)
		case <-signals:
			if !interrupted() {
				return cli.ErrInterrupted
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// watch tells all that happens to the job, beginning with what there is when
// it cannot be told from events.
func (f *follower) watch(ctx context.Context, after string, told chan<- news) {
	tell := func(n news) bool {
		select {
		case told <- n:
			return n.err == nil
		case <-ctx.Done():
			return false
		}
	}
	for {
		if after == "" {
			n, index := f.list(ctx)
			if !tell(n) {
				return
			}
			after = strconv.FormatUint(index, 10)
		}
		for ev, err := range f.cl.Events(ctx, client.EventQuery{After: after, Namespace: f.key.Namespace, Job: f.key.Name}) {
			var old *client.TooOld
			if errors.As(err, &old) {
				after = ""
				break
			}
			if !tell(news{event: &ev, err: err}) {
				return
			}
		}
		if after != "" {
			return // ctx is over
		}
	}
}

// list is what there is now of the job: either all of it, for it has ended, or what
// there was at index, from where events tell the rest.
func (f *follower) list(ctx context.Context) (news, uint64) {
	for {
		before, err := f.cl.Job(ctx, f.key)
		if err != nil {
			return news{err: cli.JobHint(err)}, 0
		}
		n, index := news{job: before}, uint64(0)
		for q := (client.AllocQuery{Limit: client.MaxPage}); ; {
			page, err := f.cl.JobAllocs(ctx, f.key, q)
			if err != nil {
				return news{err: err}, 0
			}
			n.allocs = append(n.allocs, page.Allocs...)
			if index == 0 {
				index = page.Index // the oldest view: events from there on repeat some, and miss none
			}
			if q.After = page.Next; page.Next == "" {
				break
			}
		}
		if before.Stage == string(muster.JobEnded) {
			return n, index
		}
		after, err := f.cl.Job(ctx, f.key)
		if err != nil {
			return news{err: cli.JobHint(err)}, 0
		}
		// If it ended in between, that event may lie before index: look again.
		if after.Stage != string(muster.JobEnded) {
			return n, index
		}
	}
}

func (f *follower) take(n news) error {
	if n.job != nil {
		if err := f.takeJob(n.job); err != nil {
			return err
		}
		for i := range n.allocs {
			f.see(&n.allocs[i])
		}
	}
	switch ev := n.event; {
	case ev == nil:
	case ev.AllocNow != nil:
		f.see(ev.AllocNow)
	case ev.JobNow != nil:
		return f.takeJob(ev.JobNow)
	}
	return nil
}

func (f *follower) takeJob(j *api.Job) error {
	if j.UID != f.uid || j.Version > f.version {
		return cli.Failure(fmt.Errorf("job %s was submitted again: version %d took the place of version %d", f.key, j.Version, f.version))
	}
	if j.Version == f.version {
		f.job = j
	}
	return nil
}

// see takes what is told of an allocation. It may be told again, and late.
func (f *follower) see(al *api.Alloc) {
	if al.JobUID != f.uid || al.Version != f.version || f.index >= 0 && al.Index != f.index {
		return
	}
	t := f.tracked[al.ID]
	if t == nil {
		t = &tracked{
			id: muster.AllocID(al.ID), index: al.Index, previous: f.previous[al.Index],
			over: make(chan struct{}), printed: make(chan struct{}),
		}
		f.tracked[al.ID], f.previous[al.Index] = t, t
		f.open++
	} else if t.alloc.Status == string(muster.AllocEnded) {
		return
	}
	t.alloc = *al
	if f.detail != nil {
		f.detail(startText(al, f.out.prefix))
	}
	if f.last == nil || al.Attempt >= f.last.Attempt {
		f.last = al
	}
	switch al.Status {
	case string(muster.AllocRunning):
		if !t.taken && !t.queued {
			t.queued = true
			f.waiting = append(f.waiting, t)
		}
	case string(muster.AllocEnded):
		close(t.over)
		f.open--
		silent := !t.taken && f.out.silent(al)
		// What it printed comes before the end that it came to. What a lost node keeps may never come.
		if t.read || silent || al.Outcome == string(muster.OutcomeLost) {
			f.note(al)
		} else {
			t.untold = true
		}
		switch {
		case t.taken: // its reader sees that it is over
		case silent:
			t.taken = true
			t.skip()
		default:
			f.ended = append(f.ended, t)
		}
	}
}

// startText is what an allocation's start is at, as the pull of its image; "" if there is nothing to say.
func startText(al *api.Alloc, many bool) string {
	if al.Detail == "" || al.Status != string(muster.AllocPlaced) && al.Status != string(muster.AllocStarting) {
		return ""
	}
	if many {
		return fmt.Sprintf("member %d: %s", al.Index, al.Detail)
	}
	return al.Detail
}

// skip says that nothing of it needs to be printed, when that is so for what comes before it.
func (t *tracked) skip() {
	before := t.previous
	t.previous = nil
	if before == nil {
		close(t.printed)
		return
	}
	select {
	case <-before.printed:
		close(t.printed)
	default:
		go func() {
			<-before.printed
			close(t.printed)
		}()
	}
}

// note tells of an attempt that failed.
func (f *follower) note(al *api.Alloc) {
	if !f.notes || al.Outcome != string(muster.OutcomeFailed) && al.Outcome != string(muster.OutcomeLost) {
		return
	}
	if f.told++; f.told > maxTold {
		if f.told == maxTold+1 {
			f.out.screen.Say("further failed attempts are not told one by one; `muster job show %s` shows them", f.key)
		}
		return
	}
	who := fmt.Sprintf("attempt %d", al.Attempt)
	if f.out.prefix {
		who = fmt.Sprintf("member %d, attempt %d", al.Index, al.Attempt)
	}
	f.out.screen.Say("%s %s: %s", who, al.Outcome, cli.AllocReason(al))
}

// pump gives what waits to be read to readers, as far as there are places.
func (f *follower) pump(ctx context.Context) {
	for f.live < maxLive && len(f.waiting) > 0 {
		t := f.waiting[0]
		f.waiting = f.waiting[1:]
		if t.taken || t.alloc.Status == string(muster.AllocEnded) {
			continue
		}
		t.taken = true
		f.live++
		go f.read(ctx, t)
	}
	for f.draining < maxDraining && len(f.ended) > 0 {
		t := f.ended[0]
		f.ended = f.ended[1:]
		t.taken, t.drain = true, true
		f.draining++
		go f.read(ctx, t)
	}
}

// read prints the output of one allocation, to its end.
func (f *follower) read(ctx context.Context, t *tracked) {
	defer func() {
		select {
		case f.done <- t: // which closes printed, once it has told how it ended
		case <-ctx.Done():
			close(t.printed)
		}
	}()
	if f.out.prefix && !t.drain {
		timer := time.NewTimer(settle)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-t.over:
		case <-ctx.Done():
			return
		}
	}
	if t.previous != nil {
		select {
		case <-t.previous.printed:
		case <-ctx.Done():
			return
		}
	}
	select {
	case <-t.over:
		if f.out.silent(&t.alloc) {
			return
		}
	default:
	}
	// What can be read of others is still worth printing; a server that is gone ends the whole by its events.
	if err := f.out.print(ctx, f.cl, t.id, t.index, true); err != nil && ctx.Err() == nil {
		f.out.screen.Say("%v", err)
	}
}
