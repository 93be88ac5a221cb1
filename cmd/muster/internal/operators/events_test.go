package operators

import (
	"os"
	"strings"
	"testing"

	"github.com/musterhq/muster/cmd/muster/internal/clitest"
)

func TestEvents(t *testing.T) {
	s := withMixedJob(t)
	lines := func(r clitest.Result) string {
		var types []string
		for line := range strings.Lines(r.Stdout) {
			types = append(types, strings.Fields(line)[2])
		}
		return strings.Join(types, " ")
	}
	r := s.Muster(nil, "events")
	if got := lines(r); got != "alloc.running alloc.ended alloc.running alloc.ended alloc.running alloc.ended alloc.running" || r.Code != 0 {
		t.Error(r)
	}
	r = s.Muster(nil, "events", "--after", "15.0")
	if got := lines(r); got != "alloc.ended alloc.running" || r.Code != 0 {
		t.Error(r)
	}
	if r := s.Muster(nil, "events", "--json", "--after", "16"); strings.Count(r.Stdout, "\n") != 1 || !strings.HasPrefix(r.Stdout, `{"id":"17.0","index":17,`) {
		t.Error(r)
	}
	s.Do(func() { s.Forgotten = 14 })
	s.Muster(nil, "events", "--after", "12").Check(t, 1, "", "muster: events after 12 are no longer kept: kept from 14; without --after it begins with the oldest that are kept\n")
	s.Muster(nil, "events", "--node", "nope").Check(t, 0, "", "muster: no events of node nope are kept; `muster node list --all` shows the nodes\n")
	s.Muster(nil, "events", "--job", "nope").Check(t, 0, "", "muster: no events of job nope are kept; `muster job list` shows the jobs\n")
	s.Muster(nil, "events", "--json", "-n", "nope").Check(t, 0, "", "muster: no events of namespace nope are kept; `muster namespace list` shows the namespaces\n")
	s.Muster(nil, "events", "--after", "bogus").Check(t, 2, "", "muster: --after: is \"bogus\"; give the id of an event, an index, or oldest\n")
	signals := make(chan os.Signal, 4)
	go func() {
		s.Start(1, 2)
		signals <- os.Interrupt
	}()
	s.Muster(signals, "events", "-f", "--after", "17").Check(t, 130, "", "")
}
