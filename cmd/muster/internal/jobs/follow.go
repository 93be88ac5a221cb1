package jobs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/cmd/muster/internal/cli"
)

// follower follows one version of a job to its end. It learns of allocations from events, prints
// their output while it is made, and goes on over restarts of the server. The fields before job are
// set before follow.
//
// One goroutine decides (follow), one hears events (watch), and one for each allocation that is
// read prints its output. They meet by channels alone.
type follower struct {
	// cl waits for a server that goes away, for as long as its owner has chosen.
	cl  *client.Client
	key muster.JobKey
	// uid and version say which submission is followed: the name may be used again.
	uid     string
	version uint64
	// out prints what members print, and what is said about them.
	out *printer
	// index is the only member that is followed; -1 for all. notes says that attempts that failed
	// are reported.
	index int
	// notes says that attempts that failed are reported.
	notes bool
	// giveUp is for how long attempts that fail for reasons outside are repeated; 0: not known.
	giveUp api.Duration
	// on are the failures that are retried, as the job says it.
	on []string
	// detail, if set, is told what the start of an allocation is at; "" when it runs.
	detail func(text string)
	// runs, if set, is called for each allocation that is heard to run.
	runs func(al *api.Alloc)

	// All below belongs to follow's goroutine. The job is as it was last heard of.
	job *api.Job
	// last is the newest attempt that was heard of.
	last *api.Alloc
	// tracked are the allocations by id.
	tracked map[string]*tracked
	// previous is the attempt of each member that was seen last.
	previous map[int]*tracked
	// open counts tracked allocations that have not ended.
	open int
	// waiting are running and have no place to be read yet.
	waiting []*tracked
	// ended are those that ended before they were read.
	ended []*tracked
	// live counts those that are read while they run.
	live int
	// draining counts those that are read after they have ended.
	draining int
	// done takes each reader that has come to its end.
	done chan *tracked
	// told counts failed attempts that were reported.
	told int
	// outside says that it was explained how failures are retried that are not the command's.
	outside bool
	// listed says that all that there was at the beginning is tracked.
	listed bool
}

const (
	// maxLive is how many members are read while they run: each takes a connection, and nobody
	// reads more lines at once. Others are read when they have ended.
	maxLive = 64
	// maxDraining is how many are read at once after they have ended: that is quick.
	maxDraining = 8
	// settle is how long one of many must have run before it is read. Those that are shorter print
	// little, and streams of their own would cost more than they show.
	settle = 100 * time.Millisecond
	// maxTold is how many failed attempts are reported one by one.
	maxTold = 20
)

// tracked is an allocation whose output is to be printed.
type tracked struct {
	id muster.AllocID
	// index is the only member that is followed; -1 for all.
	index int
	// fresh says that it was placed after the following began: all of its output is news.
	fresh bool
	// previous is the attempt of the same member before this one: its output comes first.
	previous *tracked
	// drain says that it is read after it has ended: such readers have places of their own.
	drain bool

	// alloc is how it was last heard of. It is not written any more once over is closed, so readers
	// may look at it then.
	alloc api.Alloc
	// over is closed when the allocation has ended.
	over chan struct{}
	// taken says that somebody reads it, has read it, or that nobody needs to.
	taken bool
	// read says that its reader is done.
	read bool
	// untold says that it has ended, and that its failure is reported when its output was read.
	untold bool
	// queued says that it is in waiting.
	queued bool
	// printed is closed when all of its output is printed.
	printed chan struct{}
}

// news is what the watcher hears: an event, or all that there is, or an error that ends it.
type news struct {
	event *api.Event
	// With job and allocs: what there is, at a time when events could not be had.
	job    *api.Job
	allocs []api.Alloc // of the job, all that are kept
	err    error
}

// follow returns when the job has ended and its output is printed. After is where events of it
// begin; "" if that is not known. For each signal interrupted is asked whether to go on.
func (f *follower) follow(ctx context.Context, after string, signals <-chan os.Signal, interrupted func(os.Signal) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	f.tracked, f.previous, f.done = map[string]*tracked{}, map[int]*tracked{}, make(chan *tracked)
	told := make(chan news)
	go f.watch(ctx, after, told)
	for {
		f.pump(ctx)
		// All attempts have ended and are known, since the job ends after them.
		over := f.job != nil && f.job.Stage == string(muster.JobEnded) && f.open == 0
		if over && f.live+f.draining+len(f.ended) == 0 {
			return nil
		}
		if over {
			// There is nothing more to hear, and the watcher waits for ctx.
			told = nil
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
		case sig := <-signals:
			if !interrupted(sig) {
				return cli.ErrInterrupted
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// watch sends all that happens to the job. It begins with what there is when that cannot be learned
// from events, because they are no longer kept.
func (f *follower) watch(ctx context.Context, after string, told chan<- news) {
	// It returns false when nobody listens any more, or after an error, which is the last word.
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
			// The server was away for long, and has dropped events meanwhile: begin with what there
			// is.
			var old *client.TooOld
			if errors.As(err, &old) {
				after = ""
				break
			}
			if !tell(news{event: &ev, err: err}) {
				return
			}
		}
		// Events end without an error only when ctx has.
		if after != "" {
			return // ctx is over
		}
	}
}

// list is what there is of the job: either all of it, for it has ended, or what there was at index,
// from where events have the rest.
func (f *follower) list(ctx context.Context) (news, uint64) {
	for {
		before, err := f.cl.Job(ctx, f.key)
		if err != nil {
			return news{err: cli.JobHint(err)}, 0
		}
		n, index := news{job: before}, uint64(0)
		// All attempts are read, ended ones too: their output may not be printed yet.
		for q := (client.AllocQuery{Limit: client.MaxPage}); ; {
			page, err := f.cl.JobAllocs(ctx, f.key, q)
			if err != nil {
				return news{err: err}, 0
			}
			n.allocs = append(n.allocs, page.Allocs...)
			if index == 0 {
				// The first page is the oldest view. Events from there on repeat some of what the
				// others show, and miss nothing.
				index = page.Index
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
		// If the job ended in between, that event may lie before index: look again.
		if after.Stage != string(muster.JobEnded) {
			return n, index
		}
	}
}

// take takes in what was heard.
func (f *follower) take(n news) error {
	// The job comes first: allocations of another submission are not looked at.
	if n.job != nil {
		if err := f.takeJob(n.job); err != nil {
			return err
		}
		for i := range n.allocs {
			f.see(&n.allocs[i])
		}
		f.listed = true
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

// takeJob takes in how the job is. A newer version of it, or another job of that name, ends the
// following: nobody would know which output is of which.
func (f *follower) takeJob(j *api.Job) error {
	if j.UID != f.uid || j.Version > f.version {
		return cli.Failure(fmt.Errorf("job %s was submitted again: version %d took the place of version %d", f.key, j.Version, f.version))
	}
	if j.Version == f.version {
		f.job = j
	}
	return nil
}

// see takes in what was heard of an allocation. It may be heard again, and late, so what has ended
// stays ended.
func (f *follower) see(al *api.Alloc) {
	// Events are of all versions of the job.
	if al.JobUID != f.uid || al.Version != f.version || f.index >= 0 && al.Index != f.index {
		return
	}
	t := f.tracked[al.ID]
	if t == nil {
		t = &tracked{
			id: muster.AllocID(al.ID), index: al.Index, fresh: f.listed, previous: f.previous[al.Index],
			over: make(chan struct{}), printed: make(chan struct{}),
		}
		f.tracked[al.ID], f.previous[al.Index] = t, t
		f.open++
	} else if t.alloc.Status == string(muster.AllocEnded) {
		return
	}
	// It is a copy: what is heard later must not change what a reader looks at.
	t.alloc = *al
	// With several members the last one that was heard of is shown.
	if f.detail != nil {
		f.detail(startText(al, f.out.prefix))
	}
	if f.last == nil || al.Attempt >= f.last.Attempt {
		f.last = al
	}
	switch al.Status {
	case string(muster.AllocRunning):
		if f.runs != nil {
			f.runs(al)
		}
		if !t.taken && !t.queued {
			t.queued = true
			f.waiting = append(f.waiting, t)
		}
	case string(muster.AllocEnded):
		close(t.over)
		f.open--
		silent := !t.taken && f.out.silent(al)
		// Its output is printed before its end is reported. What a lost node keeps may never come,
		// so that is not waited for.
		if t.read || silent || al.Outcome == string(muster.OutcomeLost) {
			f.note(al)
		} else {
			t.untold = true
		}
		switch {
		// Its reader sees by itself that it is over.
		case t.taken:
		// There is nothing to read, so no reader is needed; the next attempt must not wait for one.
		case silent:
			t.taken = true
			t.skip()
		// It ended before anybody read it, and is read now.
		default:
			f.ended = append(f.ended, t)
		}
	}
}

// startText is what an allocation's start is at, as the pull of its image; "" if there is nothing
// to say.
func startText(al *api.Alloc, many bool) string {
	if al.Detail == "" || al.Status != string(muster.AllocPlaced) && al.Status != string(muster.AllocStarting) {
		return ""
	}
	if many {
		return fmt.Sprintf("member %d: %s", al.Index, al.Detail)
	}
	return al.Detail
}

// skip says that nothing of it needs to be printed, as soon as that is so for what comes before it.
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

// note reports an attempt that failed. After maxTold it says only that there are more.
func (f *follower) note(al *api.Alloc) {
	if !f.notes || al.Outcome != string(muster.OutcomeFailed) && al.Outcome != string(muster.OutcomeLost) {
		return
	}
	if f.told++; f.told > maxTold {
		if f.told == maxTold+1 {
			f.out.screen.Say("further failed attempts are not reported one by one; `muster job show %s` shows them", f.key)
		}
		return
	}
	// With one member only the attempt tells them apart.
	who := fmt.Sprintf("attempt %d", al.Attempt)
	if f.out.prefix {
		who = fmt.Sprintf("member %d, attempt %d", al.Index, al.Attempt)
	}
	f.out.screen.Say("%s %s: %s", who, al.Outcome, cli.AllocReason(al))
	if why := notRetried(al, f.on); why != "" {
		f.out.screen.Say("it is not tried again: %s", why)
	}
	if f.giveUp > 0 && !f.outside && al.Failure != nil && al.Failure.Class == string(muster.FailureOutside) {
		f.outside = true
		f.out.screen.Say("this is not counted as an attempt of the command; it is tried again for up to %s, and Ctrl-C stops the job", f.giveUp)
	}
}

// notRetried says why a failure of the command is not among those that the job retries; "" if it is,
// or if the job names none.
func notRetried(al *api.Alloc, on []string) string {
	retried, err := api.ParseRestartOn(on)
	if len(on) == 0 || err != nil || al.Failure == nil || al.Failure.Class != string(muster.FailureUser) {
		return ""
	}
	what, code := "a failure of kind "+al.Failure.Reason, 0
	if al.ExitCode != nil && al.Failure.Reason == string(muster.ReasonExit) {
		code = *al.ExitCode
		what = fmt.Sprintf("exit code %d", code)
	}
	if retried.Matches(muster.Reason(al.Failure.Reason), code) {
		return ""
	}
	return fmt.Sprintf("%s is not in --on (restart.on), which is %s", what, strings.Join(on, ","))
}

// pump gives what waits to be read to readers, as far as there are places.
func (f *follower) pump(ctx context.Context) {
	for f.live < maxLive && len(f.waiting) > 0 {
		t := f.waiting[0]
		f.waiting = f.waiting[1:]
		// It has ended while it waited, and is in the other queue.
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

// read prints the output of one allocation, to its end. It waits for the output of the attempt
// before it.
func (f *follower) read(ctx context.Context, t *tracked) {
	defer func() {
		select {
		// Follow closes printed, once it has said how the allocation ended.
		case f.done <- t:
		case <-ctx.Done():
			close(t.printed)
		}
	}()
	// Short ones are read after their end, with one request.
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
	// What can be read of others is still worth printing. A server that is gone ends the whole by
	// its events.
	out := *f.out
	if t.fresh {
		out.tail = nil
	}
	if err := out.print(ctx, f.cl, t.id, t.index, true); err != nil && ctx.Err() == nil {
		f.out.screen.Say("%v", err)
	}
}
