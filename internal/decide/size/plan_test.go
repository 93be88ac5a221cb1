package size

import (
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

var update = flag.Bool("update", false, "rewrite golden files")

// cluster is a state made from text, one noun a line:
//
//	pool p min=1 max=4 launching=2 idle=60s offerings=a,b spare=1 factor=2 hour=10 month=1000 volumes=tmpfs,data
//	offer small cpu=2 memory=4GiB price=0.1 cap=0.3 zone=z market=spot family=f gpu=yes available=no
//	pool p stop=2 stopfor=1h     keeps so many idle nodes stopped
//	node n1 offer=small stage=booting health=lost intent=hold reason=why agent.os=linux
//	job a count=4 cpu=1 memory=1GiB prio=50 pool=p arch=amd64 volume=data
//	health n1 lost         its health changes
//	place a 0-2 n1         members of a go to n1
//	end a 0-1 node         their allocations end: ok, user, node; open: with output not stored
//	sleep 10s
//	block offering=small until=30s held=2 why="out of capacity"
type cluster struct {
	t      testing.TB
	s      *state.State
	index  uint64
	now    muster.Time
	blocks []Block
	paused bool // the scheduler is

	view *View // advanced by the feed
	pos  state.Position
}

func newCluster(t testing.TB) *cluster {
	s, err := state.New(1 << 13)
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, s: s, now: muster.At(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))}
	c.do(&state.TermBegan{Term: 1, Cluster: "c"})
	return c
}

func (c *cluster) try(f state.Fact) error {
	b, err := c.s.Encode(f)
	if err != nil {
		c.t.Fatal(err)
	}
	c.index++
	v := c.s.Apply(c.index, 1, int64(c.now), [][]byte{b})[0]
	err, _ = v.(error)
	return err
}

func (c *cluster) do(f state.Fact) {
	c.t.Helper()
	if err := c.try(f); err != nil {
		c.t.Fatalf("%T: %v", f, err)
	}
}

// plan plans on a view that is advanced, and on one that is built anew: they must agree.
func (c *cluster) plan() *Decisions {
	c.t.Helper()
	c.advance()
	d := Plan(c.view, c.blocks, c.now, c.paused)
	if anew := Plan(Build(c.s.Latest()), c.blocks, c.now, c.paused); c.text(d) != c.text(anew) {
		c.t.Fatalf("the view that was advanced plans\n%sone that is built anew\n%s", c.text(d), c.text(anew))
	}
	return d
}

func (c *cluster) advance() {
	snap := c.s.Latest()
	changes, last, err := c.s.Feed().After(c.pos, 1<<13)
	if c.view == nil || err != nil {
		c.view = Build(snap)
	} else {
		c.view.Advance(snap, changes)
	}
	c.pos = state.AfterIndex(last)
}

// options reads k=v words.
func options(words []string) map[string]string {
	out := map[string]string{}
	for _, w := range words {
		k, v, _ := strings.Cut(w, "=")
		out[k] = v
	}
	return out
}

func number(s string, def int) int {
	if s == "" {
		return def
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		panic(err)
	}
	return n
}

func length(s string, def time.Duration) muster.Time {
	if s != "" {
		var err error
		if def, err = time.ParseDuration(s); err != nil {
			panic(err)
		}
	}
	return muster.Time(def / time.Microsecond)
}

func amounts(o map[string]string) muster.Resources {
	take := func(k string) string { v := o[k]; delete(o, k); return v }
	var r muster.Resources
	if f, err := strconv.ParseFloat(take("cpu"), 64); err == nil {
		r.CPU = muster.MilliCPU(f * 1000)
	}
	for k, to := range map[string]*muster.Bytes{"memory": &r.Memory, "disk": &r.Disk} {
		if v := take(k); v != "" {
			size, err := api.ParseSize(v)
			if err != nil {
				panic(err)
			}
			*to = size.Bytes()
		}
	}
	return r
}

// read builds the cluster line by line.
func (c *cluster) read(text string) {
	c.t.Helper()
	var pools []state.Pool
	var offers []muster.Offering
	for _, line := range strings.Split(text, "\n") {
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		switch words[0] {
		case "pool":
			o := options(words[2:])
			p := state.Pool{Name: muster.PoolName(words[1]), Provider: "fake", Min: number(o["min"], 0), Max: number(o["max"], 10),
				MaxLaunching: number(o["launching"], 64), IdleTimeout: length(o["idle"], time.Minute), BootTimeout: length("", 5*time.Minute), Grace: length(o["grace"], time.Minute),
				Spare: number(o["spare"], 0), StopMost: number(o["stop"], 0), StopTime: length(o["stopfor"], time.Hour), PriceFactor: 2, BudgetHour: money(o["hour"]), BudgetMonth: int64(money(o["month"])), Volumes: o["volumes"]}
			if f, err := strconv.ParseFloat(o["factor"], 64); err == nil {
				p.PriceFactor = f
			}
			for _, name := range strings.FieldsFunc(o["offerings"], func(r rune) bool { return r == ',' }) {
				p.Offerings = append(p.Offerings, muster.OfferingName(name))
			}
			pools = append(pools, p)
			c.do(&state.PoolsSet{Pools: pools})
		case "offer":
			offers = append(offers, readOffering(words))
			c.do(&state.OfferingsSeen{Provider: "fake", Offerings: offers})
		case "nopools":
			c.do(&state.PoolsSet{})
		case "nooffers":
			offers = nil
			c.do(&state.OfferingsSeen{Provider: "fake", Offerings: offers})
		case "node":
			c.node(muster.NodeID(words[1]), options(words[2:]), offers)
		case "health":
			c.do(&state.NodeHealthChanged{ID: muster.NodeID(words[1]), Health: muster.NodeHealth(words[2])})
		case "job":
			c.job(words[1], options(words[2:]))
		case "place":
			c.place(words[1], words[2], muster.NodeID(words[3]))
		case "end":
			c.end(words[1], words[2], words[3])
		case "stored":
			c.do(&state.OutputStored{Alloc: muster.AllocID("u" + words[1]), Output: state.Output{Stage: state.OutputComplete}})
		case "sleep":
			c.now += length(words[1], 0)
		case "paused":
			c.paused = true
		case "block":
			o := options(strings.Fields(strings.Split(line, " why=")[0])[1:])
			_, why, _ := strings.Cut(line, "why=")
			c.blocks = append(c.blocks, Block{Until: c.now + length(o["until"], 0), Why: strings.Trim(why, `"`),
				Held:  number(o["held"], 0),
				Scope: muster.Scope{Offering: muster.OfferingName(o["offering"]), Zone: o["zone"], Market: muster.Market(o["market"]), Family: o["family"]}})
		default:
			c.t.Fatalf("line %q: unknown noun", line)
		}
	}
}

func money(s string) muster.Price {
	v, _ := strconv.ParseFloat(s, 64)
	return muster.Price(math.Round(v * 1e6))
}

func readOffering(words []string) muster.Offering {
	o := options(words[2:])
	out := muster.Offering{Provider: "fake", Name: muster.OfferingName(words[1]), Market: muster.OnDemand, Available: o["available"] != "no", Capacity: amounts(o), Zone: o["zone"]}
	if o["market"] != "" {
		out.Market = muster.Market(o["market"])
	}
	out.Limit, _ = strconv.Atoi(o["limit"])
	out.Price, out.PriceCap = money(o["price"]), money(o["cap"])
	out.Family = o["family"]
	for _, k := range []string{"available", "zone", "market", "price", "cap", "family", "limit"} {
		delete(o, k)
	}
	if len(o) > 0 {
		out.Attributes = o
	}
	return out
}

func (c *cluster) node(id muster.NodeID, o map[string]string, offers []muster.Offering) {
	c.t.Helper()
	var of muster.Offering
	for _, x := range offers {
		if string(x.Name) == o["offer"] {
			of = x
		}
	}
	pool := muster.PoolName("p")
	if o["pool"] != "" {
		pool = muster.PoolName(o["pool"])
	}
	stage := muster.NodeStage(o["stage"])
	if c.s.Latest().Node(id) != nil {
		c.move(id, stage)
		return
	}
	if stage == muster.NodeAdopted {
		c.do(&state.NodeAdopted{ID: id, Token: muster.Token("t" + id), Pool: pool, Offering: of, Instance: muster.InstanceID("i" + id)})
	} else {
		c.do(&state.NodeLaunching{ID: id, Token: muster.Token("t" + id), Pool: pool, Offering: of})
	}
	if stage != muster.NodeLaunching && stage != muster.NodeAdopted {
		c.do(&state.NodeLaunched{ID: id, Instance: muster.InstanceID("i" + id)})
	}
	if stage == "" || stage == muster.NodeServing || stage == muster.NodeDraining || stage == muster.NodeTerminating || stage == muster.NodeStopped || stage == muster.NodeStarting {
		said := map[string]string{}
		for k, v := range o {
			if name, ok := strings.CutPrefix(k, "agent."); ok {
				said[name] = v
			}
		}
		c.do(&state.NodeJoined{ID: id, Capacity: of.Capacity, Attributes: said, Boot: "b"})
	}
	if o["health"] != "" {
		c.do(&state.NodeHealthChanged{ID: id, Health: muster.NodeHealth(o["health"]), Reason: o["reason"], Incapable: o["incapable"] != ""})
	}
	if o["unplaced"] != "" {
		c.do(&state.NodeDraining{ID: id, Reason: "pool p is no longer configured", Unplaced: true})
	}
	c.move(id, stage)
	if o["intent"] != "" {
		c.do(&state.NodeIntentSet{ID: id, Intent: muster.NodeIntent(o["intent"]), Reason: o["reason"]})
	}
}

// move brings a node nearer to its end.
func (c *cluster) move(id muster.NodeID, stage muster.NodeStage) {
	c.t.Helper()
	switch stage {
	case muster.NodeDraining:
		c.do(&state.NodeDraining{ID: id, Reason: "surplus"})
	case muster.NodeStopped, muster.NodeStarting:
		if c.s.Latest().Node(id).Stage != muster.NodeStopped {
			c.do(&state.NodeStopped{ID: id, Reason: "idle"})
		}
		if stage == muster.NodeStarting {
			c.do(&state.NodeStarting{ID: id, Reason: "wanted"})
		}
	case muster.NodeTerminating:
		c.do(&state.NodeTerminating{ID: id, Reason: "idle"})
	case muster.NodeGone:
		c.do(&state.NodeGone{ID: id, Reason: "destroyed"})
	}
}

func (c *cluster) job(name string, o map[string]string) {
	c.t.Helper()
	prio := number(o["prio"], 50)
	ask := amounts(o)
	s := &api.JobSpec{Name: name, Namespace: "default", Type: "batch", Count: number(o["count"], 1), Template: api.Template{Priority: &prio, Command: []string{"true"}, Pool: o["pool"],
		Resources: api.ResourcesSpec{CPU: float64(ask.CPU) / 1000, Memory: api.Size(ask.Memory), Disk: api.Size(ask.Disk)}},
		Restart: api.RestartSpec{Attempts: 1, Backoff: api.Duration(time.Second), BackoffMax: api.Duration(time.Minute), GiveUp: api.Duration(time.Hour)}}
	if o["tries"] != "" {
		s.Restart.Attempts, s.Restart.On = number(o["tries"], 1), []string{"any"}
	}
	for _, k := range []string{"prio", "count", "pool", "tries"} {
		delete(o, k)
	}
	if v := o["volume"]; v != "" {
		s.Image, s.Volumes = "i", []api.VolumeSpec{{Name: v, Path: "/v"}}
		delete(o, "volume")
	}
	for k, v := range o {
		s.Constraints = append(s.Constraints, api.ConstraintSpec{Attribute: k, Op: "=", Value: v})
	}
	c.do(&state.JobSubmitted{Key: muster.JobKey{Namespace: "default", Name: name}, UID: muster.JobUID("u" + name), Spec: s})
}

// span reads "3" or "0-2".
func span(s string) (from, to int) {
	a, b, ok := strings.Cut(s, "-")
	if !ok {
		b = a
	}
	return number(a, 0), number(b, 0)
}

func (c *cluster) place(name, members string, node muster.NodeID) {
	c.t.Helper()
	uid := muster.JobUID("u" + name)
	from, to := span(members)
	for i := from; i <= to; i++ {
		attempt := 1
		if m := c.s.Latest().Member(uid, i); m != nil {
			attempt = m.Attempt + 1
		}
		before := c.s.Latest().LiveAllocCount()
		c.do(&state.PlanCommitted{Placements: []state.Placement{{UID: uid, Version: c.s.Latest().JobByUID(uid).Version, Index: i, Attempt: attempt, Node: node}}})
		if c.s.Latest().LiveAllocCount() == before {
			c.t.Fatalf("%s %d not placed on %s", name, i, node)
		}
	}
}

func (c *cluster) end(name, members, how string) {
	c.t.Helper()
	uid := muster.JobUID("u" + name)
	from, to := span(members)
	for i := from; i <= to; i++ {
		a := c.s.Latest().Alloc(c.s.Latest().Member(uid, i).Alloc())
		u := state.AllocUpdate{ID: a.ID, Status: muster.AllocEnded, Outcome: muster.OutcomeSucceeded, Output: &state.Output{Stage: state.OutputComplete}}
		switch how {
		case "open":
			u.Output = nil
		case "user":
			u.Outcome, u.Failure = muster.OutcomeFailed, &muster.Failure{Class: muster.FailureUser, Reason: muster.ReasonExit, Message: "exit 1"}
			u.ExitCode = 1
		case "node":
			u.Outcome, u.Failure = muster.OutcomeFailed, &muster.Failure{Class: muster.FailureNode, Reason: muster.ReasonNodeFault, Message: "disk"}
		}
		c.do(&state.AllocsReported{Node: a.Node, Allocs: []state.AllocUpdate{u}})
	}
}

func (c *cluster) text(d *Decisions) string {
	var b strings.Builder
	for _, l := range d.Launch {
		fmt.Fprintf(&b, "launch %s in %s: %s\n", l.Offering.Name, l.Pool, l.Reason)
	}
	for _, t := range d.Start {
		fmt.Fprintf(&b, "start %s: %s\n", t.Node, t.Reason)
	}
	for _, t := range d.Stop {
		fmt.Fprintf(&b, "stop %s: %s\n", t.Node, t.Reason)
	}
	for _, t := range d.Drain {
		fmt.Fprintf(&b, "drain %s: %s\n", t.Node, t.Reason)
	}
	for _, t := range d.Keep {
		fmt.Fprintf(&b, "keep %s: %s\n", t.Node, t.Reason)
	}
	for _, t := range d.Terminate {
		fmt.Fprintf(&b, "terminate %s: %s", t.Node, t.Reason)
		if t.IfIdle {
			b.WriteString(" (if idle)")
		}
		b.WriteByte('\n')
	}
	for _, f := range d.Fail {
		fmt.Fprintf(&b, "fail %s: %s\n", f.Key, f.Reason)
	}
	for _, w := range d.Waits {
		fmt.Fprintf(&b, "wait %d at priority %d: %s\n", w.Members, w.Priority, w.Reason)
	}
	for _, x := range d.Budgets {
		fmt.Fprintf(&b, "budget %s: %s of %s an hour, %s of %s a month", x.Pool, x.Hour, x.HourLimit, muster.Price(x.Month), muster.Price(x.MonthLimit))
		if x.Alert > 0 {
			fmt.Fprintf(&b, ", alert at %d %%", x.Alert)
		}
		b.WriteByte('\n')
	}
	if d.Wake != 0 {
		fmt.Fprintf(&b, "wake in %s\n", d.Wake.Sub(c.now))
	}
	if b.Len() == 0 {
		return "nothing\n"
	}
	return b.String()
}

// TestPlan reads testdata/*.txt: cases of a name ("== name"), a cluster, and after "--" what is planned.
func TestPlan(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no golden files", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		for _, part := range strings.Split(string(data), "== ")[1:] {
			name, rest, _ := strings.Cut(part, "\n")
			in, want, _ := strings.Cut(rest, "--\n")
			want = strings.TrimRight(want, "\n") + "\n"
			t.Run(filepath.Base(file)+"/"+name, func(t *testing.T) {
				c := newCluster(t)
				c.read(in)
				got := c.text(c.plan())
				fmt.Fprintf(&out, "== %s\n%s--\n%s\n", name, in, got)
				if got != want && !*update {
					t.Errorf("planned:\n%swant:\n%s", got, want)
				}
			})
		}
		if *update {
			if err := os.WriteFile(file, []byte(strings.TrimRight(out.String(), "\n")+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}
