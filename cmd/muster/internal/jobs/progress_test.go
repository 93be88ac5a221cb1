package jobs

import (
	"bytes"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/cmd/muster/internal/term"
)

// A countdown is told once in a log, and anew when what is counted down is another thing.
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
