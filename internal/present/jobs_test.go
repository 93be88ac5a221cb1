package present

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit/fittest"
)

// names reads all pages of a selection.
func names(t *testing.T, c *fittest.Cluster, s JobSelection) string {
	t.Helper()
	var out []string
	left := -1
	for range 100 {
		page, err := Jobs(c.Snapshot(), s)
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range page.Rows {
			out = append(out, j.Key.Name)
		}
		// What is left shrinks by each page.
		if s.Newest && left >= 0 && page.Left != left-len(page.Rows) {
			t.Errorf("%+v: %d left, then %d", s, left, page.Left)
		}
		left = page.Left
		if s.After = page.Next; page.Next == "" {
			return strings.Join(out, " ")
		}
	}
	t.Fatalf("%+v does not end: %q", s, out)
	return ""
}

// Whatever the size of the pages, each job is on one of them, in order.
func TestPagesOfJobs(t *testing.T) {
	c := fittest.Read(t, "node n1 cpu=4 memory=8GiB\n")
	for _, line := range []string{
		"job m cpu=1", "job z cpu=1", "wait 1s", "job b cpu=1", "wait 1s", "job c cpu=9", "job a cpu=9", "wait 1s", "job q cpu=1", "place m 0 n1", "run m 0",
		"place z 0 n1", "run z 0", "end z 0 failed", "place q 0 n1",
	} {
		c.Do(line)
	}
	for _, limit := range []int{1, 2, 3, 5, 6, 7, 100} {
		for want, s := range map[string]JobSelection{
			"q a c b z m": {Newest: true},
			"a b c m q z": {},
			"q a c b":     {Newest: true, Status: "waiting"},
			"m":           {Newest: true, Status: "running"},
			"z":           {Status: "failed"},
			"":            {Newest: true, Namespace: "other"},
			"q a c b m":   {Newest: true, Stage: "live"},
		} {
			s.Limit = limit
			if got := names(t, c, s); got != want {
				t.Errorf("%+v: %q, want %q", s, got, want)
			}
		}
	}
	// A job that comes between two pages moves none of the others.
	first, err := Jobs(c.Snapshot(), JobSelection{Newest: true, Limit: 2})
	if err != nil {
		t.Fatal(err)
	}
	c.Do("wait 1s")
	c.Do("job new cpu=1")
	if got := names(t, c, JobSelection{Newest: true, Limit: 2, After: first.Next}); got != "c b z m" {
		t.Errorf("after %s: %q", first.Next, got)
	}
}

func TestPositionsOfPagesAreChecked(t *testing.T) {
	c := fittest.Read(t, "job a cpu=1\n")
	for after, newest := range map[string]bool{
		"x": false, "A/b": false, "1/default/a": false, "/": false, "default/a": true, "1": true, "1/": true, "1/default": true, "x/default/a": true, "1/default/A": true,
		"99999999999999999999/default/a": true,
	} {
		if _, err := Jobs(c.Snapshot(), JobSelection{Newest: newest, After: after, Limit: 1}); err == nil {
			t.Errorf("%q is taken", after)
		}
	}
}

func TestCommandInAList(t *testing.T) {
	for _, test := range []struct{ command, want []string }{
		{nil, nil},
		{[]string{"echo", "hello"}, []string{"echo", "hello"}},
		{[]string{"sh", "-c", strings.Repeat("a", 300)}, []string{"sh", "-c", strings.Repeat("a", 194) + "…"}},
		// A rune is not cut in two.
		{[]string{strings.Repeat("ä", 150)}, []string{strings.Repeat("ä", 100) + "…"}},
		{[]string{"x" + strings.Repeat("ä", 150)}, []string{"x" + strings.Repeat("ä", 99) + "…"}},
		{slices.Repeat([]string{"0123456789"}, 50), append(slices.Repeat([]string{"0123456789"}, 18), "01…")},
	} {
		if got := commandInList(test.command); !slices.Equal(got, test.want) {
			t.Errorf("%.40q: %q", fmt.Sprint(test.command), got)
		}
	}
}

// Of jobs of one moment the name decides, so that a page ends at one of them.
func TestJobsOfOneMomentStandByName(t *testing.T) {
	at := func(moment muster.Time, ns, name string) jobPlace {
		return jobPlace{moment, muster.JobKey{Namespace: muster.Namespace(ns), Name: name}}
	}
	order := []jobPlace{at(9, "b", "a"), at(5, "a", "b"), at(5, "b", "a"), at(5, "b", "b"), at(1, "a", "a")}
	for i, x := range order {
		for k, y := range order {
			if got := x.compare(y); got != cmp.Compare(i, k) {
				t.Errorf("%v, %v: %d", x, y, got)
			}
		}
	}
}
