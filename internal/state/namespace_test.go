package state

import (
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

func (l *log) submitIn(ns muster.Namespace, name string, s *api.JobSpec) error {
	l.t.Helper()
	_, err := l.do(&JobSubmitted{Key: muster.JobKey{Namespace: ns, Name: name}, UID: muster.JobUID(string(ns) + name), Spec: s})
	return err
}

// Limits of jobs refuse a submission with a quota fault; lifting them lets it in. What runs goes on.
func TestLimitOfJobs(t *testing.T) {
	l := newLog(t)
	l.must(&NamespaceLimited{NamespaceLimits{Name: "a", Jobs: 1}})
	if err := l.submitIn("a", "one", spec(1)); err != nil {
		t.Fatal(err)
	}
	err := l.submitIn("a", "two", spec(1))
	if !muster.IsKind(err, muster.FaultQuota) || !strings.Contains(err.Error(), "namespace a may have 1 job ") {
		t.Errorf("the second job of one allowed: %v", err)
	}
	if err := l.submitIn("b", "two", spec(1)); err != nil {
		t.Errorf("another namespace: %v", err)
	}
	// The cluster's limit binds whoever comes.
	l.must(&NamespaceLimited{NamespaceLimits{Name: muster.AllNamespaces, Jobs: 2}})
	if err := l.submitIn("c", "three", spec(1)); !muster.IsKind(err, muster.FaultQuota) {
		t.Errorf("the third job of two allowed in all: %v", err)
	}
	// One that ends makes room; a new version of one that lives needs none.
	l.must(&JobStopped{Key: muster.JobKey{Namespace: "b", Name: "two"}})
	if err := l.submitIn("c", "three", spec(1)); err != nil {
		t.Errorf("after one ended: %v", err)
	}
	if _, err := l.do(&JobSubmitted{Key: muster.JobKey{Namespace: "a", Name: "one"}, UID: "x", Spec: spec(2), Replace: true}); err != nil {
		t.Errorf("a new version: %v", err)
	}
	l.must(&NamespaceLimited{NamespaceLimits{Name: "a"}})
	l.must(&NamespaceLimited{NamespaceLimits{Name: muster.AllNamespaces}})
	if n := l.s.Latest().LimitCount(); n != 0 {
		t.Errorf("%d limits are left", n)
	}
	if err := l.submitIn("a", "two", spec(1)); err != nil {
		t.Errorf("after the limit was lifted: %v", err)
	}
	check(t, l.s.Latest())
}

// Who asks for more in one member than its namespace may ever have is told so at once.
func TestLimitThatOneMemberPasses(t *testing.T) {
	l := newLog(t)
	l.must(&NamespaceLimited{NamespaceLimits{Name: "a", CPU: 500}})
	err := l.submitIn("a", "one", spec(1))
	if !muster.IsKind(err, muster.FaultQuota) || !strings.Contains(err.Error(), "may have 0.5 cores") {
		t.Errorf("got %v", err)
	}
}

// Limits of allocations, cores and memory bind when a plan is applied, whoever planned it.
func TestLimitsBindPlans(t *testing.T) {
	for name, limits := range map[string]NamespaceLimits{
		"allocations": {Name: "default", Allocs: 2},
		"cores":       {Name: "default", CPU: 2500},
		"memory":      {Name: "default", Memory: 2 << 20},
		"all":         {Name: muster.AllNamespaces, Allocs: 2},
	} {
		l := newLog(t)
		l.serve("n1", 8)
		l.submit("j", spec(4))
		l.must(&NamespaceLimited{limits})
		var ps []Placement
		for i := range 4 {
			ps = append(ps, Placement{UID: "uj", Version: 1, Index: i, Attempt: 1, Node: "n1"})
		}
		res := l.must(&PlanCommitted{Placements: ps}).(*PlanResult)
		if res.Placed != 2 || len(res.Refused) != 2 || res.Refused[0].NodeFault || !strings.Contains(res.Refused[0].Reason, "may have") {
			t.Errorf("%s: placed %d, refused %+v", name, res.Placed, res.Refused)
		}
		check(t, l.s.Latest())
		l.report("n1", succeeded(muster.NewAllocID("uj", 0, 1)))
		if res := l.place("uj", 1, 2, 1, "n1"); res.Placed != 1 {
			t.Errorf("%s: after one ended: %+v", name, res)
		}
		if got := l.s.Latest().Use("default"); got.Allocs != 2 || got.Jobs != 1 || *l.s.Latest().Use(muster.AllNamespaces) == (NamespaceUse{}) {
			t.Errorf("%s: use is %+v", name, got)
		}
	}
}

// Shares that make no sense are refused with a clear error, and the ones before stay.
func TestInvalidSharesAreRefused(t *testing.T) {
	l := newLog(t)
	l.must(&SharesSet{Rules: []ShareRule{{Match: "a*", Weight: 3}}})
	for _, r := range [][]ShareRule{
		{{Match: "a", Weight: -1}}, {{Match: "", Weight: 1}}, {{Match: "[", Weight: 1}},
		{{Match: "a", Class: "x", Weight: 1}, {Match: "b", Class: "x", Weight: 2}},
	} {
		if _, err := l.do(&SharesSet{Rules: r}); !muster.IsKind(err, muster.FaultInvalid) {
			t.Errorf("%+v: %v", r, err)
		}
	}
	if class, w := l.s.Latest().Shares().Class("abc"); class != "namespace abc" || w != 3 {
		t.Errorf("class %q, weight %d", class, w)
	}
	for _, bad := range []NamespaceLimits{{Name: "a", Jobs: -1}, {Name: "a", MaxPriority: 102}, {Name: "a", Memory: -1}} {
		if _, err := l.do(&NamespaceLimited{bad}); !muster.IsKind(err, muster.FaultInvalid) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// Of several rules that match, the first that is written counts, always.
func TestFirstMatchingRuleCounts(t *testing.T) {
	s := &Shares{Rules: []ShareRule{{Match: "team-a", Weight: 5}, {Match: "team-*", Class: "teams", Weight: 2}, {Match: "*", Class: "rest", Weight: 1}}}
	for range 100 {
		for ns, want := range map[muster.Namespace]string{"team-a": "namespace team-a", "team-b": "teams", "team-": "teams", "b": "rest"} {
			if got, _ := s.Class(ns); got != want {
				t.Fatalf("%s: class %q, want %q", ns, got, want)
			}
		}
	}
	if class, w := (*Shares)(nil).Class("x"); class != "namespace x" || w != 1 {
		t.Errorf("without rules: %q, %d", class, w)
	}
}

func TestPaceIsARunningMean(t *testing.T) {
	l := newLog(t)
	l.serve("n1", 8)
	l.submit("j", spec(3))
	for i, d := range []time.Duration{10 * time.Second, 20 * time.Second, 60 * time.Second} {
		l.place("uj", 1, i, 1, "n1")
		id := muster.NewAllocID("uj", i, 1)
		l.report("n1", AllocUpdate{ID: id, Status: muster.AllocRunning, Started: muster.Time(l.now)})
		l.sleep(d)
		u := succeeded(id)
		if i == 2 { // a failure says nothing of how long it takes
			u = failed(id, muster.FailureUser, muster.ReasonExit, 1)
		}
		u.Ended = muster.Time(l.now)
		l.report("n1", u)
	}
	p := l.s.Latest().Pace(key("j"))
	if p == nil || p.Count != 2 || p.Mean < 14e6 || p.Mean > 16e6 {
		t.Fatalf("pace is %+v, want about 15 s from two ends", p)
	}
	before := image(t, l.s)
	s, _ := New(16)
	if err := s.Restore(strings.NewReader(string(before))); err != nil {
		t.Fatal(err)
	}
	if string(image(t, s)) != string(before) || *s.Latest().Pace(key("j")) != *p {
		t.Error("a restored state has another pace")
	}
	check(t, s.Latest())
}

// TestRoom: the limit with the least room counts, the first of equals; what is not asked for limits nothing.
func TestRoom(t *testing.T) {
	use := &NamespaceUse{Allocs: 1, Used: muster.Resources{CPU: 3000, Memory: muster.GiB}}
	ask := muster.Resources{CPU: 1000, Memory: muster.GiB}
	for _, tc := range []struct {
		limits NamespaceLimits
		ask    muster.Resources
		n      int
		why    string
	}{
		{NamespaceLimits{}, ask, 9, ""},
		{NamespaceLimits{Allocs: 10, CPU: 12_000}, ask, 9, ""},
		{NamespaceLimits{Allocs: 5, CPU: 7000, Memory: 5 * muster.GiB}, ask, 4, "namespace a may have 5 allocations and has 1"},
		{NamespaceLimits{Allocs: 5, CPU: 6500, Memory: 4 * muster.GiB}, ask, 3, "namespace a may have 6.5 cores and has 3"},
		{NamespaceLimits{CPU: 2000}, ask, 0, "namespace a may have 2 cores and has 3"},
		{NamespaceLimits{CPU: 2000}, muster.Resources{Memory: muster.GiB}, 9, ""},
		{NamespaceLimits{Name: muster.AllNamespaces, Memory: muster.GiB}, ask, 0, "all namespaces together may have 1GiB of memory and has 1GiB"},
	} {
		if tc.limits.Name == "" {
			tc.limits.Name = "a"
		}
		if n, why := tc.limits.Room(use, tc.ask, 9); n != tc.n || why != tc.why {
			t.Errorf("%+v: %d, %q; want %d, %q", tc.limits, n, why, tc.n, tc.why)
		}
	}
	if n, why := (*NamespaceLimits)(nil).Room(use, ask, 9); n != 9 || why != "" {
		t.Errorf("without limits: %d, %q", n, why)
	}
}
