package httpapi

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/decide/size"
	"github.com/musterhq/muster/internal/operate"
	"github.com/musterhq/muster/internal/state"
)

// post sends an order and decodes what must be a 200.
func post[T any](b *bench, path, body string) T {
	b.Helper()
	a := b.do("POST", path, body)
	if a.StatusCode != 200 {
		b.Fatalf("POST %s: %d %s", path, a.StatusCode, a.body)
	}
	return as[T](b, a)
}

// A drain may have a deadline; setting the node to run takes it back.
func TestDrainDeadline(t *testing.T) {
	b := newBench(t, 1000)
	b.node("n1")
	n := post[api.Node](b, "/v1/nodes/n1/drain", `{"deadline":"10m","who":"ada"}`)
	if n.Intent != "drain" || n.IntentUntil == nil || time.Until(*n.IntentUntil) > 10*time.Minute || time.Until(*n.IntentUntil) < 9*time.Minute {
		t.Errorf("%+v", n)
	}
	if n = post[api.Node](b, "/v1/nodes/n1/run", ``); n.Intent != "run" || n.IntentUntil != nil {
		t.Errorf("%+v", n)
	}
	if p := b.problem(b.do("POST", "/v1/nodes/n1/drain", `{"deadline":"-1m"}`), 422, "invalid"); !strings.Contains(fmt.Sprint(p), "body.deadline") {
		t.Errorf("%+v", p)
	}
}

// Within the grace nothing is known of what runs on a lost node, and nothing of that is stored.
func TestWorkOfALostNodeIsUnreachable(t *testing.T) {
	b := newBench(t, 1000)
	b.node("n1")
	id := b.place(b.submit("default", "j", 1), "n1", 0, 1)[0]
	b.report("n1", state.AllocUpdate{ID: id, Status: muster.AllocRunning})
	shown := func() [3]bool {
		one := get[api.Alloc](b, "/v1/allocations/"+string(id))
		list := get[api.AllocList](b, "/v1/allocations?node=n1")
		of := get[api.AllocList](b, "/v1/jobs/default/j/allocations")
		if one.Status != "running" {
			t.Errorf("%+v", one)
		}
		return [3]bool{one.Unreachable, list.Allocs[0].Unreachable, of.Allocs[0].Unreachable}
	}
	for _, h := range []muster.NodeHealth{muster.NodeGood, muster.NodeLost, muster.NodeGood} {
		b.propose(&state.NodeHealthChanged{ID: "n1", Health: h, Reason: "r"})
		if got, is := shown(), h == muster.NodeLost; got != [3]bool{is, is, is} {
			t.Errorf("%s: %v", h, got)
		}
	}
}

func TestNodeIntentsOfAnOperator(t *testing.T) {
	b := newBench(t, 1000)
	b.node("n1")
	n := post[api.Node](b, "/v1/nodes/n1/hold", `{"reason":"to look at","for":"2h","who":"ada"}`)
	if n.Intent != "hold" || n.Schedulable || n.IntentWho != "ada" || n.IntentReason != "to look at" || n.IntentUntil == nil ||
		time.Until(*n.IntentUntil) > 2*time.Hour || time.Until(*n.IntentUntil) < time.Hour {
		t.Errorf("%+v", n)
	}
	list := get[api.NodeList](b, "/v1/nodes")
	if len(list.Nodes) != 1 || list.Nodes[0].Intent != "hold" || list.Nodes[0].Reason != "to look at" {
		t.Errorf("%+v", list)
	}
	b.problem(b.do("POST", "/v1/nodes/n1/destroy", `{"now":true}`), 409, "conflict")
	if n = post[api.Node](b, "/v1/nodes/n1/drain", ``); n.Intent != "drain" || n.IntentWho != "operator" || n.IntentUntil != nil {
		t.Errorf("%+v", n)
	}
	if n = post[api.Node](b, "/v1/nodes/n1/run", `{}`); n.Intent != "run" || !n.Schedulable {
		t.Errorf("%+v", n)
	}
	uid := b.submit("default", "j", 1)
	b.place(uid, "n1", 0, 1)
	if n = post[api.Node](b, "/v1/nodes/n1/destroy", `{"who":"ada","reason":"old"}`); n.Stage != "draining" || n.Allocs != 1 {
		t.Errorf("%+v", n)
	}
	for range 2 { // the second changes nothing
		if n = post[api.Node](b, "/v1/nodes/n1/destroy", `{"now":true,"who":"ada"}`); n.Stage != "terminating" {
			t.Errorf("%+v", n)
		}
	}
	var history []string
	for _, e := range n.History {
		history = append(history, strings.TrimRight(fmt.Sprintf("%s by %s: %s", e.Type, e.Who, e.Reason), ": "))
	}
	want := []string{"node.launching by", "node.booting by", "node.serving by", "node.intent-hold by ada: to look at", "node.intent-drain by operator", "node.intent-run by operator",
		"node.draining by ada: destroyed by an operator: old", "node.terminating by ada: destroyed by an operator"}
	if got := strings.Join(history, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("history:\n%s", got)
	}
	for _, verb := range []string{"hold", "drain", "run", "destroy"} {
		b.problem(b.do("POST", "/v1/nodes/nope/"+verb, ""), 404, "not-found")
	}
	for body, where := range map[string]string{
		`{"for":"-1s"}`: "body.for", `{"for":"900000h"}`: "body.for", `{"reason":"` + strings.Repeat("x", 1001) + `"}`: "body.reason", `{"reason":1}`: "body.reason", `{"now":true}`: "body.now",
	} {
		p := b.problem(b.do("POST", "/v1/nodes/n1/hold", body), 422, "invalid")
		if len(p.Errors) != 1 || p.Errors[0].Location != where {
			t.Errorf("%s: %+v", body, p)
		}
	}
	b.propose(&state.NodeGone{ID: "n1"})
	b.problem(b.do("POST", "/v1/nodes/n1/hold", ""), 409, "conflict")
	if n = post[api.Node](b, "/v1/nodes/n1/destroy", ""); n.Stage != "gone" {
		t.Errorf("%+v", n)
	}
}

// The failures of a node that are shown are the recent ones by the log's clock, wherever the system's is.
func TestFailuresOfNodeGoByTheLogsClock(t *testing.T) {
	var now func() muster.Time
	b := newBench(t, 100, func(c *parts) { c.Clock = func() muster.Time { return now() } })
	after := time.Second
	now = func() muster.Time { return b.state.Latest().Meta().Time.Add(after) }
	b.node("n1")
	b.propose(&state.NodeHealthChanged{ID: "n1", Health: muster.NodeGood}, &state.NodeFailed{ID: "n1", Reason: "no image"})
	if n := get[api.Node](b, "/v1/nodes/n1"); len(n.Failures) != 1 || n.Failures[0].What != "no image" {
		t.Errorf("a second later: %+v", n.Failures)
	}
	after = state.FlakyWindow
	if n := get[api.Node](b, "/v1/nodes/n1"); len(n.Failures) != 0 {
		t.Errorf("after the window: %+v", n.Failures)
	}
}

// Without a token, with a wrong one. That it is compared in constant time is for the reader of guard.go.
func TestOperatorRequestsNeedTheToken(t *testing.T) {
	b := newBench(t, 100)
	b.node("n1")
	for _, path := range []string{"/v1/nodes/n1/hold", "/v1/nodes/n1/destroy", "/v1/pools/p/resume", "/v1/providers/local/check"} {
		b.problem(b.do("POST", path, "", header("Authorization", "")), 401, api.CodeAuth)
		b.problem(b.do("POST", path, "", header("Authorization", "Bearer "+token[1:])), 401, api.CodeAuth)
	}
	if n := get[api.Node](b, "/v1/nodes/n1"); n.Intent != "run" || n.Stage != "serving" {
		t.Errorf("%+v", n)
	}
}

// sight is what a fleet would tell.
type sight struct {
	operate.Idle
	decisions *size.Decisions
	blocks    []size.Block
	blind     error
	unsold    error
	trouble   map[muster.NodeID]string
	asked     int // for troubles
}

func (s *sight) Unsold(muster.ProviderName) (muster.Time, error) { return 7e6, s.unsold }

func (s *sight) Rates(muster.ProviderName) []api.CallRate { return nil }

func (s *sight) Unstored(muster.JobUID) (int, error) { return 0, nil }

func (s *sight) Troubles() func(*state.Node) string {
	s.asked++
	return func(n *state.Node) string { return s.trouble[n.ID] }
}

func (s *sight) Blind(p muster.ProviderName) (muster.Time, error) {
	if p != "local" {
		return 0, nil
	}
	return 5e6, s.blind
}

func (s *sight) Fleet() (*size.Decisions, []size.Block) { return s.decisions, s.blocks }

func withPool(b *bench) {
	b.propose(&state.PoolsSet{Pools: []state.Pool{{Name: "p", Provider: "local", Max: 9, MaxLaunching: 9, IdleTimeout: 60e6, BootTimeout: 300e6, Grace: 60e6}}},
		&state.OfferingsSeen{Provider: "local", Offerings: []muster.Offering{
			{Name: "big", Price: 500_000, Market: muster.OnDemand, Available: true, Capacity: muster.Resources{CPU: 64000, Memory: 64 * muster.GiB, Disk: muster.TiB}},
			{Name: "spot", Zone: "z", Price: 100_000, Market: muster.Spot, Available: true, Capacity: muster.Resources{CPU: 64000, Memory: 64 * muster.GiB, Disk: muster.TiB}},
			{Name: "tiny", Price: 1000, Market: muster.OnDemand, Available: true, Capacity: muster.Resources{CPU: 1, Memory: 1}},
		}})
}

func TestPools(t *testing.T) {
	s := &sight{}
	b := newBench(t, 1000, func(c *parts) { c.Insight = s })
	withPool(b)
	b.node("n1")
	b.node("n2")
	b.propose(&state.NodeHealthChanged{ID: "n2", Health: muster.NodeLost, Reason: "r"}, &state.NodeIntentSet{ID: "n2", Intent: muster.NodeHold})
	s.blocks = []size.Block{{Scope: muster.Scope{Provider: "local", Zone: "z", Market: muster.Spot}, Until: muster.At(time.Now().Add(time.Hour)), Why: "none left"},
		{Scope: muster.Scope{Provider: "other"}, Until: muster.At(time.Now().Add(time.Hour)), Why: "not ours"}}
	p := get[api.Pool](b, "/v1/pools/p")
	if p.Nodes != (api.PoolNodes{Live: 2, Serving: 2, Idle: 2, Lost: 1, Held: 1}) || p.Price != 1 || p.Max != 9 || p.IdleTimeout.Std() != time.Minute {
		t.Errorf("%+v", p)
	}
	if len(p.Blocks) != 1 || p.Blocks[0].Zone != "z" || p.Blocks[0].Over || p.Blocks[0].Why != "none left" {
		t.Errorf("%+v", p.Blocks)
	}
	if p.Blind != nil {
		t.Errorf("%+v", p.Blind)
	}
	s.blind = errors.New("no list")
	if p := get[api.Pool](b, "/v1/pools/p"); p.Blind == nil || p.Blind.Error != "no list" || p.Blind.Since.Unix() != 5 {
		t.Errorf("%+v", p.Blind)
	}
	if p.Unsold != nil || len(p.Troubles) > 0 {
		t.Errorf("%+v", p)
	}
	s.unsold, s.trouble = errors.New("no prices"), map[muster.NodeID]string{"n1": "destroy failed twice: role lacks the right"}
	if p := get[api.Pool](b, "/v1/pools/p"); p.Unsold == nil || p.Unsold.Error != "no prices" || p.Unsold.Since.Unix() != 7 ||
		!slices.Equal(p.Troubles, []api.NodeTrouble{{Node: "n1", Error: s.trouble["n1"]}}) {
		t.Errorf("%+v", p)
	}
	if n := get[api.Node](b, "/v1/nodes/n1"); n.Trouble != s.trouble["n1"] {
		t.Errorf("%+v", n)
	}
	if l := get[api.NodeList](b, "/v1/nodes"); l.Nodes[0].Trouble != s.trouble["n1"] || l.Nodes[1].Trouble != "" {
		t.Errorf("%+v", l)
	}
	says(t, get[api.NodeExplanation](b, "/v1/nodes/n1/explain").Text, "The provider: destroy failed twice: role lacks the right.")
	s.decisions = &size.Decisions{Budgets: []size.Budget{{Pool: "q", Alert: 100}, {Pool: "p", Hour: 900_000, HourLimit: 1e6, Alert: 80}}}
	if g := get[api.Pool](b, "/v1/pools/p").Budget; g.Hour != 0.9 || g.Alert != 80 {
		t.Errorf("%+v", g)
	}
	if l := get[api.PoolList](b, "/v1/pools"); len(l.Pools) != 1 || l.Pools[0].Nodes != p.Nodes {
		t.Errorf("%+v", l)
	}
	b.propose(&state.PoolTripped{Pool: "p", Reason: "too many"})
	if p = get[api.Pool](b, "/v1/pools/p"); p.Breaker.Tripped == nil || p.Breaker.Reason != "too many" {
		t.Errorf("%+v", p.Breaker)
	}
	if p.Spent == nil || *p.Spent <= 0 {
		t.Errorf("spent: %v", p.Spent)
	}
	events := b.do("GET", "/v1/events?after=oldest&follow=false", "").body
	if !strings.Contains(events, `"type":"pool.tripped"`) || !strings.Contains(events, "the breaker of pool p has tripped: too many") {
		t.Errorf("no event of it in\n%s", events)
	}
	if p = post[api.Pool](b, "/v1/pools/p/resume", `{"who":"ada"}`); p.Breaker.Tripped != nil || p.Breaker.Who != "ada" || p.Breaker.Resumed == nil {
		t.Errorf("%+v", p.Breaker)
	}
	b.problem(b.do("GET", "/v1/pools/nope", ""), 404, "not-found")
	b.problem(b.do("POST", "/v1/pools/nope/resume", ""), 404, "not-found")
}

// However many pools and nodes there are, the loops are asked once for what is wrong with the nodes.
func TestTroublesAreAskedForOncePerRequest(t *testing.T) {
	s := &sight{trouble: map[muster.NodeID]string{"n1": "destroy failed"}}
	b := newBench(t, 1000, func(c *parts) { c.Insight = s })
	b.propose(&state.PoolsSet{Pools: []state.Pool{{Name: "o", Provider: "local", Max: 1}, {Name: "p", Provider: "local", Max: 9}, {Name: "q", Provider: "local", Max: 1}}})
	for i := range 5 {
		b.node(muster.NodeID(fmt.Sprint("n", i)))
	}
	for _, path := range []string{"/v1/pools", "/v1/pools/p", "/v1/pools/q", "/v1/nodes", "/v1/nodes/n1"} {
		s.asked = 0
		if body := b.do("GET", path, "").body; strings.Contains(body, "destroy failed") == strings.HasSuffix(path, "q") || s.asked != 1 {
			t.Errorf("%s: asked %d times: %s", path, s.asked, body)
		}
	}
}

func says(t *testing.T, text []string, want ...string) {
	t.Helper()
	whole := strings.Join(text, "\n")
	for _, w := range want {
		if !strings.Contains(whole, w) {
			t.Errorf("does not say %q:\n%s", w, whole)
		}
	}
}

func TestExplainJob(t *testing.T) {
	s := &sight{}
	b := newBench(t, 1000, func(c *parts) { c.Insight = s })
	withPool(b)
	b.submit("default", "first", 3)
	uid := b.submit("default", "j", 4)
	j := b.state.Latest().JobByUID(uid)
	until := muster.At(time.Now().Add(40 * time.Second))
	s.blocks = []size.Block{{Scope: muster.Scope{Provider: "local", Offering: "spot"}, Until: until, Why: "none left"}}
	s.decisions = &size.Decisions{Waits: []size.Wait{{Shape: j.Run.Shape, Priority: 50, Members: 7, Reason: "pool p is at its budget"}, {Shape: j.Run.Shape, Priority: 1, Reason: "another's"}}}
	e := get[api.JobExplanation](b, "/v1/jobs/default/j/explain")
	says(t, e.Text, "Of 4 members, 4 wait", "Served before it: 1 waiting job, with 3 members.", "there are no nodes", "spot of pool p: the cloud refused (none left)",
		"tiny of pool p: is too small: short of memory", "nodes are launched for 7 members like it: pool p is at its budget", "costs 0.5 an hour")
	if e.Ahead == nil || *e.Ahead != (api.QueueAhead{Jobs: 1, Members: 3}) || len(e.Blocks) != 1 || len(e.Fleet) != 1 || len(e.Offerings) != 3 || e.Price == nil || *e.Price != 0.5 || e.Considered == nil {
		t.Errorf("%+v", e)
	}
	// A node of the kind has taken a second; another is on its way.
	b.node("n1")
	b.propose(&state.NodeIntentSet{ID: "n1", Intent: muster.NodeHold})
	b.propose(&state.NodeLaunching{ID: "n2", Token: "t2", Pool: "p", Reason: "for 4 members", Offering: b.state.Latest().Node("n1").Offering})
	e = get[api.JobExplanation](b, "/v1/jobs/default/j/explain")
	// F-U6: the log of this bench has a clock of its own, long before ours.
	says(t, e.Text, "1 on hold", "1 launching", "Node n2 (big, 0.5 an hour) has been launching", "longer than the 0s that such nodes take")
	if len(e.Coming) != 1 || e.Coming[0].Reason != "for 4 members" || e.Coming[0].Expected != nil || e.Expected != nil || len(e.Considered.Closed) != 2 {
		t.Errorf("%+v", e)
	}
	b.propose(&state.JobParked{UID: uid, Reason: "it was refused five times", Until: muster.At(time.Now().Add(time.Hour))})
	e = get[api.JobExplanation](b, "/v1/jobs/default/j/explain")
	says(t, e.Text, "parked it for another 1h0m0s: it was refused five times")
	b.propose(&state.JobStopped{Key: j.Key, Reason: "enough"})
	e = get[api.JobExplanation](b, "/v1/jobs/default/j/explain")
	says(t, e.Text, "Job j has ended: stopped: stopped by user: enough.")
	b.problem(b.do("GET", "/v1/jobs/default/nope/explain", ""), 404, "not-found")
}

func TestExplainNode(t *testing.T) {
	b := newBench(t, 1000)
	withPool(b)
	b.node("n1")
	explain := func() api.NodeExplanation { t.Helper(); return get[api.NodeExplanation](b, "/v1/nodes/n1/explain") }
	e := explain()
	// The log of this bench has a clock of its own, long before ours: its idle time-out is over.
	says(t, e.Text, "Stage: serving", "set by fleet", "It takes new work", "Nothing runs on it for", "Its end: it has been idle for longer than 1m0s")
	uid := b.submit("default", "j", 2)
	b.place(uid, "n1", 0, 2)
	e = explain()
	says(t, e.Text, "2 live allocations on it, of 1 job", "not while work runs there")
	if len(e.Runs) != 1 || e.Runs[0] != (api.NodeRuns{Namespace: "default", Job: "j", Allocs: 2}) || e.EndsAt != nil {
		t.Errorf("%+v", e)
	}
	b.propose(&state.NodeIntentSet{ID: "n1", Intent: muster.NodeDrain, Who: "ada", Reason: "kernel"})
	says(t, explain().Text, "Intent: drain", "set by ada: kernel", "It waits for the end of its last allocation", "after its last allocation: it is drained")
	// F-U7: the deadline of a drain.
	b.propose(&state.NodeIntentSet{ID: "n1", Intent: muster.NodeDrain, Who: "ada", Reason: "kernel", Until: muster.At(time.Now().Add(time.Hour))})
	if e = explain(); e.EndsAt == nil {
		t.Error("no end of a drain with a deadline")
	}
	says(t, e.Text, "what still runs in 1h0m0s, its deadline, is stopped: it is drained")
	b.propose(&state.NodeIntentSet{ID: "n1", Intent: muster.NodeHold, Who: "ada", Until: muster.At(time.Now().Add(time.Hour))})
	says(t, explain().Text, "takes no new work because of its intent, hold", "not while it is held, for another 1h0m0s")
	b.propose(&state.NodeIntentSet{ID: "n1", Intent: muster.NodeRun}, &state.NodeHealthChanged{ID: "n1", Health: muster.NodeLost, Reason: "silent"}, &state.PoolTripped{Pool: "p", Reason: "too many"})
	// F-U5: members on a node that is lost.
	job := get[api.JobExplanation](b, "/v1/jobs/default/j/explain")
	says(t, job.Text, "2 of its members may be lost: node n1 is lost: silent.")
	alloc := get[api.Alloc](b, "/v1/allocations/"+string(muster.NewAllocID(uid, 0, 1)))
	if !alloc.Unreachable || alloc.NodeProblem != "node n1 is lost: silent" {
		t.Errorf("%+v", alloc)
	}
	says(t, explain().Text, "Health: lost", "It waits for contact", "not while the breaker of pool p has tripped (too many)")
	b.propose(&state.NodeTerminating{ID: "n1", Reason: "r"})
	says(t, explain().Text, "it is being destroyed: r", "to confirm that its instance is gone")
	says(t, get[api.JobExplanation](b, "/v1/jobs/default/j/explain").Text, "2 of its members may be lost: node n1 is being destroyed: r.")
	b.propose(&state.NodeGone{ID: "n1", Reason: "r"})
	if e = explain(); e.Ends != "it is gone: r" {
		t.Errorf("%+v", e)
	}
	b.propose(&state.NodeLaunching{ID: "n2", Token: "t2", Pool: "p", Offering: b.state.Latest().Node("n1").Offering}, &state.NodeLaunched{ID: "n2", Instance: "i2"},
		&state.NodeHealthChanged{ID: "n2", Health: muster.NodeUnready, Reason: "its agent could not be started: permission denied"})
	says(t, get[api.NodeExplanation](b, "/v1/nodes/n2/explain").Text, "Its boot: its agent could not be started: permission denied", "unless its agent comes into service")
	if n := get[api.Node](b, "/v1/nodes/n2"); n.BootError == "" {
		t.Errorf("%+v", n)
	}
	// F-U7: one that serves has none any more.
	b.propose(&state.NodeJoined{ID: "n2"})
	if n := get[api.Node](b, "/v1/nodes/n2"); n.Stage != "serving" || n.BootError != "" {
		t.Errorf("%+v", n)
	}
	b.problem(b.do("GET", "/v1/nodes/nope/explain", ""), 404, "not-found")
}
