package jobs

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster/api"
)

func TestJobsAreListedNewestFirst(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	// Pages come by name. Of two of the same moment the name decides.
	jobs := []api.Job{{Name: "a", Submitted: at(3)}, {Name: "b", Submitted: at(1)}, {Name: "c", Submitted: at(2)}, {Name: "d", Submitted: at(3)}}
	slices.SortStableFunc(jobs, newestFirst)
	var names []string
	for _, j := range jobs {
		names = append(names, j.Name)
	}
	if got := strings.Join(names, " "); got != "a d c b" {
		t.Errorf("listed: %s", got)
	}
}

func TestJobListFlags(t *testing.T) {
	s := withJob(t, 1)
	s.Muster(nil, "job", "list", "--status", "failed").Check(t, 0, "", "muster: no jobs with status failed\n")
	s.Muster(nil, "job", "list", "--status", "ended").Check(t, 2, "", "muster: --status is \"ended\"; it is one of waiting, running, .*\n")
	s.Muster(nil, "job", "list", "--limit", "-1").Check(t, 2, "", "muster: --limit is -1; 0 shows all\n")
}
