package explain

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/decide/fit/fittest"
	"github.com/musterhq/muster/internal/decide/size"
	"github.com/musterhq/muster/internal/state"
)

var update = flag.Bool("update", false, "write what the tests see into their golden files")

// loops know what a test says.
type loops struct {
	decisions *size.Decisions
	blocks    []size.Block
	blind     error
	trouble   string
	paused    string
	unstored  int
	rates     []api.CallRate
}

func (l *loops) Fleet() (*size.Decisions, []size.Block)         { return l.decisions, l.blocks }
func (l *loops) Blind(muster.ProviderName) (muster.Time, error) { return 0, l.blind }
func (l *loops) Rates(muster.ProviderName) []api.CallRate       { return l.rates }
func (l *loops) Unstored(muster.JobUID) (int, error)            { return l.unstored, errors.New("no room") }
func (l *loops) Troubles() func(*state.Node) string {
	return func(*state.Node) string { return l.trouble }
}
func (l *loops) Paused() string { return l.paused }

// Each file is a small cluster and, after the mark, what is explained of its jobs, their first members and its nodes: the sentences,
// and the other fields as JSON. Write them with: go test ./internal/explain -update
func TestGolden(t *testing.T) {
	const mark = "--- explained\n"
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			cluster, want, _ := strings.Cut(string(b), mark)
			c := fittest.Read(t, cluster)
			e := &Explainer{Snapshot: c.Snapshot(), Now: c.Now(), Loops: &loops{}}
			var got strings.Builder
			show := func(what string, text []string, explanation any) {
				data, err := json.Marshal(explanation)
				if err != nil {
					t.Fatal(err)
				}
				fmt.Fprintf(&got, "%s\n  %s\n  %s\n", what, strings.Join(text, "\n  "), data)
			}
			c.Snapshot().Jobs(muster.JobKey{}, func(j *state.Job) bool {
				x, m := e.Job(j), e.Member(j, 0)
				xt, mt := x.Text, m.Text
				x.Text, m.Text = nil, nil
				show("job "+j.Key.String(), xt, x)
				show("member 0 of job "+j.Key.String(), mt, m)
				return true
			})
			c.Snapshot().Nodes("", func(n *state.Node) bool {
				x := e.Node(n)
				text := x.Text
				x.Text = nil
				show("node "+string(n.ID), text, x)
				return true
			})
			if *update {
				if err := os.WriteFile(file, []byte(cluster+mark+got.String()), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got.String() != want {
				t.Errorf("got\n%swant\n%s", got.String(), want)
			}
		})
	}
}

// However many classes there are, an explanation lists the largest hundred of them, and counts the others.
func TestManyClasses(t *testing.T) {
	var text strings.Builder
	for i := range mostListed + 7 {
		fmt.Fprintf(&text, "node n%03d cpu=1 memory=1GiB zone=z%03d\n", i, i)
	}
	text.WriteString("node big1 cpu=4 memory=8GiB\nnode big2 cpu=4 memory=8GiB\njob j cpu=1\n")
	c := fittest.Read(t, text.String())
	x := (&Explainer{Snapshot: c.Snapshot(), Now: c.Now(), Loops: &loops{}}).Job(c.Snapshot().Job(fittest.Key("j")))
	k := x.Considered
	if k.Nodes != mostListed+9 || len(k.Classes) != mostListed || k.Classes[0].Nodes != 2 || k.MoreClasses != 8 || k.MoreNodes != 8 {
		t.Errorf("%d nodes, %d classes, %d and %d more", k.Nodes, len(k.Classes), k.MoreClasses, k.MoreNodes)
	}
	if !slices.Contains(x.Text, "  and 100 more classes, of 100 nodes") {
		t.Error(strings.Join(x.Text, "\n"))
	}
}

// What the loops know is in an explanation where it concerns the job or the node, and only there.
func TestWhatLoopsKnow(t *testing.T) {
	c := fittest.Read(t, "node n1 cpu=1 memory=1GiB\nhealth n1 lost\njob j cpu=2\n")
	j := c.Snapshot().Job(fittest.Key("j"))
	l := &loops{
		decisions: &size.Decisions{Waits: []size.Wait{
			{Shape: j.Run.Shape, Priority: j.Priority(), Members: 7, Reason: "the pool is at its budget"},
			{Shape: j.Run.Shape, Priority: j.Priority() + 1, Reason: "another's"},
		}},
		blind: errors.New("no list"), trouble: "destroy failed twice", paused: "a test",
	}
	e := &Explainer{Snapshot: c.Snapshot(), Now: c.Now(), Loops: l}
	x := e.Job(j)
	if len(x.Fleet) != 1 || x.Fleet[0] != (api.Wait{Priority: j.Priority(), Members: 7, Reason: "the pool is at its budget"}) || len(x.Blocks) != 0 {
		t.Errorf("%+v, %+v", x.Fleet, x.Blocks)
	}
	text := strings.Join(append(x.Text, e.Node(c.Snapshot().Node("n1")).Text...), "\n")
	for _, want := range []string{
		"Nothing is placed now: a test.", "No more nodes are launched for 7 members like it: the pool is at its budget.",
		"The provider: destroy failed twice.", "The provider's list of instances fails: no list.",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("does not say %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "another's") {
		t.Error(text)
	}
}

// A node that waits to be created because its provider is called so seldom is explained by that; one
// that exists, or calls of other kinds, are not.
func TestCallRatesExplainLaunchingNodes(t *testing.T) {
	const cluster = "pool default\nnode n1 cpu=1 memory=1GiB %s\njob j cpu=1\njob k cpu=1\n"
	rates := []api.CallRate{
		{Provider: "p", Calls: "create", PerSecond: 2, Waiting: 12, Last: api.Duration(6 * time.Second)},
		{Provider: "p", Calls: "destroy", PerSecond: 5, Waiting: 3},
		{Provider: "p", Calls: "launch", PerSecond: 0.4123, Waiting: 1, Last: api.Duration(1500 * time.Millisecond)},
	}
	for stage, want := range map[string][]string{
		"stage=launching": {"takes 2 instances a second: 12 wait for that, the last for 6s.", "takes 0.412 calls that create instances a second: 1 waits for that, the last for 1.5s."},
		"stage=booting":   nil,
	} {
		c := fittest.Read(t, fmt.Sprintf(cluster, stage))
		x := (&Explainer{Snapshot: c.Snapshot(), Now: c.Now(), Loops: &loops{rates: rates}}).Job(c.Snapshot().Job(fittest.Key("j")))
		var got []string
		for _, s := range x.Text {
			if _, after, found := strings.Cut(s, "takes "); found && strings.Contains(s, " a second: ") {
				got = append(got, "takes "+after)
			}
		}
		if !slices.Equal(got, want) || len(x.Rates) != len(want) {
			t.Errorf("%s: %q and %+v, want %q", stage, got, x.Rates, want)
		}
	}
}
