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

// progress tells now and then how far a job is, until ctx is over: as a bar on a
// terminal, else as a line when something has changed. It only asks; what matters comes by events.
type progress struct {
	cl     *client.Client
	key    muster.JobKey
	screen *term.Screen
	began  time.Time
	// reasons: only why it does not go on is told, as a line.
	reasons bool
	away    bool
	told    api.JobCounts
	reason  string // as told, without times

	mu     sync.Mutex
	detail string // what a start is at
}

// setDetail is told by who follows the job.
func (p *progress) setDetail(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.detail = text
}

// How often it asks.
const (
	barEvery  = 500 * time.Millisecond
	lineEvery = 10 * time.Second
)

func (p *progress) run(ctx context.Context) {
	every := lineEvery
	if p.screen.HasBar() && !p.reasons {
		every = barEvery
	}
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
		one, cancel := context.WithTimeout(ctx, 5*time.Second)
		job, err := cl.Job(one, p.key)
		cancel()
		if ctx.Err() != nil {
			return
		}
		p.show(job, err)
	}
}

// lengths are the times in a reason, as 1m5s.
var lengths = regexp.MustCompile(`\b(\d+(\.\d+)?(h|m|s|ms|µs))+\b`)

// show tells what was heard.
func (p *progress) show(job *api.Job, err error) {
	if client.IsUnreachable(err) {
		if !p.away {
			p.screen.Say("the server does not answer; the job goes on without it, and so does this when it is back")
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
	c := job.Counts
	waiting := c.Waiting + c.Placed
	why := job.Reason
	if why == "" && time.Since(p.began) > 3*time.Second {
		why = job.Waits // not worth a line while a node may be about to join
	}
	p.mu.Lock()
	if p.detail != "" && waiting > 0 {
		why = p.detail
	}
	p.mu.Unlock()
	if p.screen.HasBar() && !p.reasons {
		note := term.Brief(time.Since(p.began).Truncate(time.Second))
		switch {
		case job.Count > 1 && why != "":
			p.screen.SetBar(term.ProgressBar(c.Succeeded, c.Failed, c.Running, waiting, job.Count, note+"  "+why))
		case job.Count > 1:
			p.screen.SetBar(term.ProgressBar(c.Succeeded, c.Failed, c.Running, waiting, job.Count, note))
		case waiting > 0:
			p.screen.SetBar("waiting " + note + term.SuffixIf(why != "", ": "+why))
		case why != "":
			p.screen.SetBar(note + "  " + why)
		default:
			p.screen.SetBar("") // it runs: the terminal is its own
		}
		return
	}
	// A countdown is one thing to say, not one for each look.
	said := lengths.ReplaceAllString(why, "…")
	if c == p.told && said == p.reason {
		return
	}
	if p.reasons && (said == p.reason || job.Stage == string(muster.JobEnded)) {
		return
	}
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
