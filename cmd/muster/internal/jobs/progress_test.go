package jobs

import (
	"bytes"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/cmd/muster/internal/term"
)

// A countdown is told once in a log, and again when something else is counted down.
func TestProgressTellsACountdownOnce(t *testing.T) {
	var log bytes.Buffer
	p := &progress{key: muster.JobKey{Namespace: "default", Name: "j"}, screen: term.NewScreen(&log, &log)}
	one := api.JobCounts{Waiting: 1}
	for _, why := range []string{"the next attempt is in 1m5s", "the next attempt is in 55s", "the next attempt is in 0s", "no node fits", "the next attempt is in 2m0s"} {
		p.show(&api.Job{Count: 1, Counts: one, Reason: why}, nil)
	}
	want := "muster: job j waits: the next attempt is in 1m5s\nmuster: job j waits: no node fits\nmuster: job j waits: the next attempt is in 2m0s\n"
	if log.String() != want {
		t.Errorf("%s", log.String())
	}
}

func TestRemainingTimeOfAnArray(t *testing.T) {
	p, now := &progress{}, time.Now()
	at := func(after time.Duration, succeeded, failed int) string {
		return p.remaining(&api.Job{Count: 1000, Counts: api.JobCounts{Succeeded: succeeded, Failed: failed}}, now.Add(after))
	}
	for _, step := range []struct {
		after             time.Duration
		succeeded, failed int
		want              string
	}{
		// What was done before does not count, nor do the first moments.
		{0, 500, 0, ""}, {time.Second, 510, 0, ""}, {10 * time.Second, 590, 10, "ETA 40s"}, {20 * time.Second, 690, 10, "ETA 30s"}, {50 * time.Second, 990, 10, ""},
		// A new version begins from nothing.
		{60 * time.Second, 0, 0, ""}, {70 * time.Second, 100, 0, "ETA 1m30s"},
	} {
		if got := at(step.after, step.succeeded, step.failed); got != step.want {
			t.Errorf("after %s: %q, want %q", step.after, got, step.want)
		}
	}
}
