package jobs

import (
	"context"
	"regexp"
	"sync"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/cmd/muster/internal/term"
)

// progress says now and then how far a job is, until its context ends: as a bar on a terminal, else
// as a line when something has changed. It only asks the server; what matters comes by events.
type progress struct {
	// cl and key are the job's; began is when the command began, which is what the bar counts from.
	cl     *client.Client
	key    muster.JobKey
	screen *term.Screen
	began  time.Time
	// reasons says that only why the job does not go on is said, as a line.
	reasons bool
	// away is set while the server does not answer, so that this is said once.
	away bool
	// first is when the members were first counted, and firstDone how many had ended then.
	first     time.Time
	firstDone int
	// told is what was said last of the members.
	told api.JobCounts
	// reason is what was said last of why the job waits, without its times.
	reason string

	// mu guards detail: what a start is at, as the follower has heard.
	mu     sync.Mutex
	detail string // what a start is at
}

// setDetail is called by whoever follows the job.
func (p *progress) setDetail(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.detail = text
}

// barEvery and lineEvery are how often it asks. A bar is looked at, and a log of lines is read
// later.
const (
	barEvery  = 500 * time.Millisecond
	lineEvery = 10 * time.Second
)

// run asks and shows, until ctx ends. It does not wait for a server that is away: the follower
// does.
func (p *progress) run(ctx context.Context) {
	every := lineEvery
	if p.screen.HasBar() && !p.reasons {
		every = barEvery
	}
	// It tries once: the next look comes anyway.
	cl := p.cl.Patient(-1)
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	defer p.screen.SetBar("")
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		// A server that hangs must not keep the bar from being taken off.
		one, cancel := context.WithTimeout(ctx, 5*time.Second)
		job, err := cl.Job(one, p.key)
		cancel()
		if ctx.Err() != nil {
			return
		}
		p.show(job, err)
	}
}

// lengths are the times in a reason, as 1m5s. A countdown would be another reason each time.
var lengths = regexp.MustCompile(`\b(\d+(\.\d+)?(h|m|s|ms|µs))+\b`)

// show shows what was heard of the job.
func (p *progress) show(job *api.Job, err error) {
	if client.IsUnreachable(err) {
		// It is said once when it goes and once when it is back, and not at each look.
		if !p.away {
			p.screen.Say("server unreachable; the job keeps running; reconnecting")
		}
		p.away = true
		return
	}
	if err != nil {
		return
	}
	if p.away {
		p.screen.Say("the server is back")
	}
	p.away = false
	waiting := job.Counts.Waiting + job.Counts.Placed
	why := job.Reason
	if why == "" && time.Since(p.began) > 3*time.Second {
		// In the first seconds it is not worth a line: a node may be about to join.
		why = job.Waits
	}
	p.mu.Lock()
	// What the start is at, as the pull of an image, says more than what the scheduler knows.
	if p.detail != "" && waiting > 0 {
		why = p.detail
	}
	p.mu.Unlock()
	if p.screen.HasBar() && !p.reasons {
		p.showBar(job, waiting, why)
	} else {
		p.showLine(job, waiting, why)
	}
}

// showBar draws the bar. Of a job of one member that runs there is none: the terminal is its own.
func (p *progress) showBar(job *api.Job, waiting int, why string) {
	c := job.Counts
	note := term.Brief(time.Since(p.began).Truncate(time.Second))
	switch {
	case job.Count > 1:
		for _, more := range []string{p.remaining(job, time.Now()), why} {
			note += term.SuffixIf(more != "", "  "+more)
		}
		p.screen.SetBar(term.ProgressBar(c.Succeeded, c.Failed, c.Running, waiting, job.Count, note))
	case waiting > 0:
		p.screen.SetBar("waiting " + note + term.SuffixIf(why != "", ": "+why))
	case why != "":
		p.screen.SetBar(note + "  " + why)
	default:
		p.screen.SetBar("")
	}
}

// remaining estimates when the job ends, from how many members have ended since it was first looked
// at. What ended before may have run at another speed, on other nodes.
func (p *progress) remaining(job *api.Job, now time.Time) string {
	done := job.Counts.Succeeded + job.Counts.Failed
	if p.first.IsZero() || done < p.firstDone {
		p.first, p.firstDone = now, done
	}
	return term.Remaining(int64(done-p.firstDone), int64(job.Count-done), now.Sub(p.first))
}

// showLine says on a line what has changed since the last one.
func (p *progress) showLine(job *api.Job, waiting int, why string) {
	c := job.Counts
	// A countdown is one thing to say, not one for each look.
	said := lengths.ReplaceAllString(why, "…")
	if c == p.told && said == p.reason {
		return
	}
	if p.reasons && (said == p.reason || job.Stage == string(muster.JobEnded)) {
		return
	}
	// Of many members the counts are the news; of one, what it waits for.
	p.told, p.reason = c, said
	if p.reasons {
		if why != "" {
			p.screen.Say("job %s: %s", p.key, why)
		}
	} else if job.Count > 1 {
		p.screen.Say("job %s: %d of %d done, %d running, %d waiting, %d failed%s", p.key, c.Succeeded+c.Failed, job.Count, c.Running, waiting, c.Failed, term.SuffixIf(why != "", "; "+why))
	} else if waiting > 0 {
		p.screen.Say("job %s waits%s", p.key, term.SuffixIf(why != "", ": "+why))
	} else if why != "" {
		p.screen.Say("job %s: %s", p.key, why)
	}
}
