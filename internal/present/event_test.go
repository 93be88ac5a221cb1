package present

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit/fittest"
	"github.com/musterhq/muster/internal/state"
)

var update = flag.Bool("update", false, "write what the tests see into their golden files")

// The script of testdata/events.txt, and the type, subject and sentence of each of its events. Write them
// with: go test ./internal/present -update
func TestEventSentences(t *testing.T) {
	const file, mark = "testdata/events.txt", "--- events\n"
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	script, want, _ := strings.Cut(string(b), mark)
	c := fittest.Read(t, script)
	n1 := c.Snapshot().Node("n1")
	for _, f := range []state.Fact{
		&state.NodeIntentSet{ID: n1.ID, Intent: muster.NodeHold, Reason: "a new disk", Who: "ada"},
		&state.NodeHealthChanged{ID: n1.ID, Health: muster.NodeLost, Reason: "no contact for 30s"},
		&state.NodeIntentSet{ID: n1.ID, Intent: muster.NodeRun, Who: "ada"},
		&state.NodeTerminating{ID: n1.ID, Reason: "lost", Who: "fleet"},
		&state.PoolTripped{Pool: "default", Reason: "3 of 4 nodes are lost"},
		&state.PoolResumed{Pool: "default", Who: "ada"},
	} {
		if err, is := c.Apply(f).(error); is {
			t.Fatalf("%T: %v", f, err)
		}
	}
	changes, _, err := c.State.Feed().After(c.State.Feed().Oldest(), 1<<12)
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for i := range changes {
		ev := EventHead(&changes[i])
		if ev == nil {
			continue
		}
		EventBody(ev, &changes[i])
		subject := strings.Trim(fmt.Sprintf("%s/%s %s %s %s", ev.Namespace, ev.Job, ev.Alloc, ev.Node, ev.Pool), "/ ")
		fmt.Fprintf(&got, "%s (%s): %s\n", ev.Type, strings.Join(strings.Fields(subject), " "), ev.Text)
	}
	if *update {
		if err := os.WriteFile(file, []byte(script+mark+got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got.String() != want {
		t.Errorf("got\n%swant\n%s", got.String(), want)
	}
}

func TestEventIDRoundTrip(t *testing.T) {
	for _, p := range []state.Position{{Index: 7, Part: 3}, {Index: 1<<64 - 1}, state.AfterIndex(9)} {
		if got, ok := ParseEventID(EventID(p)); !ok || got != p {
			t.Errorf("%+v became %q and then %+v", p, EventID(p), got)
		}
	}
	for _, s := range []string{"", "x", "1.", "1.-2", "1.2.3", "18446744073709551616"} {
		if p, ok := ParseEventID(s); ok {
			t.Errorf("%q was read as %+v", s, p)
		}
	}
}
