package state

import (
	"bytes"
	"fmt"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

func date(y int, m time.Month, d, h int) muster.Time {
	return muster.At(time.Date(y, m, d, h, 0, 0, 0, time.UTC))
}

func TestMonths(t *testing.T) {
	for _, c := range []struct {
		at   muster.Time
		want string
	}{
		{date(2026, 12, 31, 23), "2026-12"}, {date(2027, 1, 1, 0), "2027-01"}, {date(2027, 1, 1, 0) - 1, "2026-12"}, {date(2028, 2, 29, 12), "2028-02"}, {0, "1970-01"},
	} {
		m := MonthOf(c.at)
		if m.String() != c.want || m.Start() > c.at || (m+1).Start() <= c.at {
			t.Errorf("%v: %s from %v to %v", c.at.Std(), m, m.Start().Std(), (m + 1).Start().Std())
		}
	}
}

func TestShares(t *testing.T) {
	const all = wholeNode
	node := muster.Resources{CPU: 8000, Memory: 32 * muster.GiB}
	for _, c := range []struct {
		ask, capacity muster.Resources
		want          int64
	}{
		{node, node, all},
		{muster.Resources{CPU: 8000}, node, all / 2},
		{muster.Resources{CPU: 4000, Memory: 8 * muster.GiB}, node, all * 3 / 8},
		{muster.Resources{CPU: 1000, Memory: muster.GiB}, muster.Resources{CPU: 4000}, all / 4},
		{muster.Resources{CPU: 1000, Memory: muster.GiB}, muster.Resources{Memory: 4 * muster.GiB}, all / 4},
		{muster.Resources{CPU: 1000}, muster.Resources{}, 0},
		{muster.Resources{CPU: 1 << 62, Memory: 1 << 62}, muster.Resources{CPU: 1 << 62, Memory: 1 << 62}, all},
		{muster.Resources{CPU: 9000, Memory: 64 * muster.GiB}, node, all},
		{muster.Resources{CPU: -5}, node, 0},
	} {
		if got := shareOf(c.ask, c.capacity); got != c.want {
			t.Errorf("%v of %v: %d, want %d", c.ask, c.capacity, got, c.want)
		}
	}
}

// priced brings a node with 4 cores and 4 GiB into service.
func (l *log) priced(id string, price muster.Price) {
	l.t.Helper()
	room := muster.Resources{CPU: 4000, Memory: 4 * muster.GiB}
	l.must(&NodeLaunching{ID: muster.NodeID(id), Token: muster.Token("t" + id), Pool: "p", Offering: muster.Offering{Name: "o", Capacity: room, Price: price}})
	l.must(&NodeLaunched{ID: muster.NodeID(id), Instance: muster.InstanceID("i-" + id)})
	l.must(&NodeJoined{ID: muster.NodeID(id), Capacity: room})
}

func half(s *api.JobSpec) { s.Resources = api.ResourcesSpec{CPU: 2, Memory: 2 << 30} }

func costs(s *Snapshot, now muster.Time) map[string]Spend {
	out := map[string]Spend{}
	s.Costs(0, now, func(c Cost) bool {
		k := fmt.Sprintf("%s %s %s/%s", c.Month, c.Pool, c.Namespace, c.Job)
		out[k] = out[k].Add(c.Spend)
		return true
	})
	s.PoolCosts(0, now, func(c PoolCost) bool {
		out[fmt.Sprintf("%s %s", c.Month, c.Pool)] = c.Whole
		out[fmt.Sprintf("%s %s idle", c.Month, c.Pool)] = c.Idle
		return true
	})
	return out
}

func TestCostOfOneNode(t *testing.T) {
	l := newLog(t)
	l.submit("a", spec(1, half))
	began := date(2026, 1, 30, 0)
	l.now = int64(began) - 1000
	l.priced("n1", 1_000_000) // launched at began
	l.now = int64(date(2026, 1, 31, 0)) - 1000
	l.place("ua", 1, 0, 1, "n1")
	l.now = int64(date(2026, 2, 2, 0)) - 1000
	const hour = muster.Time(time.Hour / time.Microsecond)
	want := map[string]Spend{
		"2026-01 p": {48e6, 48 * hour}, "2026-01 p idle": {36e6, 36 * hour}, "2026-01 p default/a": {12e6, 12 * hour},
		"2026-02 p": {24e6, 24 * hour}, "2026-02 p idle": {12e6, 12 * hour}, "2026-02 p default/a": {12e6, 12 * hour},
	}
	same := func(when string, now muster.Time) {
		t.Helper()
		check(t, l.s.Latest())
		if got := costs(l.s.Latest(), now); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %v, want %v", when, got, want)
		}
	}
	same("while it lives", date(2026, 2, 2, 0))
	if got := l.s.Latest().Spent("p", date(2026, 2, 2, 0)); got != 24e6 {
		t.Errorf("spent in February: %d", got)
	}
	if got := l.s.Latest().Spent("other", date(2026, 2, 2, 0)); got != 0 {
		t.Errorf("spent by another pool: %d", got)
	}
	l.report("n1", succeeded("ua-0-1"))
	same("when it has ended", date(2026, 2, 2, 0))
	l.now = int64(date(2026, 2, 3, 0)) - 1000
	l.must(&NodeGone{ID: "n1"})
	want["2026-02 p"], want["2026-02 p idle"] = Spend{48e6, 48 * hour}, Spend{36e6, 36 * hour}
	same("when the node is gone", date(2026, 5, 2, 0))
	l.must(&NodesPurged{[]muster.NodeID{"n1"}})
	l.must(&JobsPurged{[]muster.JobUID{"ua"}})
	same("when all is forgotten", date(2026, 5, 2, 0))
	if got := l.s.Latest().Spent("p", date(2026, 2, 28, 0)); got != 48e6 {
		t.Errorf("spent in February: %d", got)
	}
	if got := l.s.Latest().Spent("p", date(2026, 3, 1, 0)); got != 0 {
		t.Errorf("spent in March: %d", got)
	}
}

// What the provider refused costs nothing; what was lost with its node is paid for.
func TestCostOfWhatWentWrong(t *testing.T) {
	l := newLog(t)
	l.submit("a", spec(1, half))
	l.now = int64(date(2026, 3, 1, 0)) - 1000
	l.must(&NodeLaunching{ID: "n0", Token: "t0", Pool: "p", Offering: muster.Offering{Price: 5e6}})
	l.priced("n1", 1_000_000)
	if got := l.s.Latest().Spent("p", date(2026, 3, 2, 0)); got < 23e6 || got > 24e6 {
		t.Errorf("spent: %d; the intent alone costs nothing", got)
	}
	l.must(&NodeGone{ID: "n0", Reason: "not created"})
	l.place("ua", 1, 0, 1, "n1")
	l.now = int64(date(2026, 3, 2, 0)) - 1000
	l.must(&NodeGone{ID: "n1", Reason: "vanished"})
	check(t, l.s.Latest())
	got := costs(l.s.Latest(), 0)
	if a := got["2026-03 p default/a"].Cost; a < 11_999_000 || a > 12e6 {
		t.Errorf("%v", got)
	}
	if whole := got["2026-03 p"].Cost; whole < 23_999_000 || whole > 24e6 {
		t.Errorf("%v", got)
	}
}

// However many jobs there were, the rows are bounded and nothing is lost.
func TestCostIsFolded(t *testing.T) {
	l := newLog(t)
	l.s.costRows, l.s.sumRows = 10, 4
	l.now = int64(date(2026, 1, 1, 0)) - 1000
	l.priced("n1", 3_600_000_000)
	live := l.must(&JobSubmitted{Key: key("live"), UID: "ulive", Spec: spec(100, half)}).(*Submitted)
	for i := range 60 {
		ns := muster.Namespace(fmt.Sprintf("ns%d", i%7))
		uid := muster.JobUID(fmt.Sprintf("u%d", i))
		l.must(&JobSubmitted{Key: muster.JobKey{Namespace: ns, Name: fmt.Sprintf("j%d", i)}, UID: uid, Spec: spec(1, half)})
		l.place(uid, 1, 0, 1, "n1")
		if i < 3 {
			l.place(live.UID, 1, i, 1, "n1")
		}
		l.sleep(13 * time.Hour)
		l.report("n1", succeeded(muster.NewAllocID(uid, 0, 1)), succeeded(muster.NewAllocID(live.UID, i, 1)))
		check(t, l.s.Latest())
	}
	s := l.s.Latest()
	if n, m := s.t.jobCosts.Len(), s.t.sumCosts.Len(); n != 10 || m > 4+2 {
		t.Fatalf("%d rows of jobs and %d of sums", n, m)
	}
	got, all := costs(s, 0), Spend{}
	if got["2026-01 p default/live"].Cost == 0 {
		t.Errorf("a job that lives was folded before those that have ended: %v", got)
	}
	s.Costs(0, 0, func(c Cost) bool { all = all.Add(c.Spend); return true })
	if idle := got["2026-01 p idle"].Add(got["2026-02 p idle"]); all.Add(idle) != got["2026-01 p"].Add(got["2026-02 p"]) || all.Cost < 60*13*3600*500_000 {
		t.Errorf("jobs %v idle %v: %v", all, idle, got)
	}
}

// interval is what the exact model knows of a node or an allocation.
type interval struct {
	pool     muster.PoolName
	job      muster.JobKey
	price    int64
	share    int64
	from, to muster.Time
	paid     bool
}

// model is cost worked out from every interval there ever was, in fractions.
type model struct {
	nodes  map[muster.NodeID]interval
	allocs map[muster.AllocID]interval
}

func (m *model) see(s *Snapshot) {
	s.Nodes("", func(n *Node) bool {
		m.nodes[n.ID] = interval{pool: n.Pool, price: int64(n.Offering.Price), share: wholeNode, from: n.Launched, to: n.Gone, paid: n.Instance != ""}
		return true
	})
	s.Allocs("", func(a *Alloc) bool {
		n := m.nodes[a.Node]
		if a.Live() { // those that have ended keep the node that they saw: its name may come again
			m.allocs[a.ID] = interval{pool: n.pool, job: a.Run.Key, price: n.price, share: a.Share, from: a.Placed, paid: true}
			return true
		}
		i := m.allocs[a.ID]
		i.to = a.Ended
		m.allocs[a.ID] = i
		return true
	})
}

// sums are the exact cost and the number of parts, by what name gives.
func sums[K comparable](all map[K]interval, now muster.Time, name func(interval) string) (map[string]*big.Rat, map[string]int) {
	out, parts := map[string]*big.Rat{}, map[string]int{}
	for _, i := range all {
		to := i.to
		if to == 0 {
			to = now
		}
		for from := i.from; from < to && i.paid; {
			at := from.Std()
			end := min(muster.At(time.Date(at.Year(), at.Month()+1, 1, 0, 0, 0, 0, time.UTC)), to)
			k := at.Format("2006-01") + " " + name(i)
			if out[k] == nil {
				out[k] = new(big.Rat)
			}
			r := big.NewRat(i.price, 3_600_000_000)
			r.Mul(r, big.NewRat(i.share, wholeNode)).Mul(r, big.NewRat(int64(end-from), 1))
			out[k].Add(out[k], r)
			parts[k]++
			from = end
		}
	}
	return out, parts
}

// TestCostAgainstAnExactModel: whatever happens, what is kept is what every
// interval cost, within the rounding of each, and jobs and idle are the whole.
func TestCostAgainstAnExactModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := &log{t: t, now: int64(date(2026, 1, 20, 0))}
		l.s, _ = New(256)
		folds := rapid.Bool().Draw(t, "folds")
		if folds {
			l.s.costRows, l.s.sumRows = 3, 2
		}
		g, m, used := gen{t}, &model{map[muster.NodeID]interval{}, map[muster.AllocID]interval{}}, map[muster.NodeID]bool{}
		for range rapid.IntRange(1, 150).Draw(t, "n") {
			l.sleep(time.Duration(rapid.IntRange(0, 1<<30).Draw(t, "µs")) * time.Duration(1+g.pick("scale", 500)) * time.Microsecond)
			f := g.fact(l.s.Latest())
			switch f := f.(type) {
			case *NodeLaunching:
				if used[f.ID] {
					continue // the model tells nodes by id
				}
				used[f.ID] = true
				f.Pool = muster.PoolName(fmt.Sprintf("p%d", g.pick("pool", 2)))
				f.Offering.Price = muster.Price(g.pick("price", 40_000_000))
			case *NodeJoined:
				f.Capacity.CPU += muster.MilliCPU(g.pick("cpu", 3000))
				if n := l.s.Latest().Node(f.ID); n != nil { // what is placed must fit what there is
					f.Capacity.CPU = max(f.Capacity.CPU, n.Capacity.CPU)
				}
			}
			_, _ = l.do(f)
			check(t, l.s.Latest())
			m.see(l.s.Latest())
		}
		var again bytes.Buffer
		if _, err := l.s.Image().WriteTo(&again); err != nil {
			t.Fatal(err)
		}
		restored, _ := New(256)
		if err := restored.Restore(&again); err != nil {
			t.Fatal(err)
		}
		now := muster.Time(l.now + 3_600_000_000)
		for _, s := range []*Snapshot{l.s.Latest(), restored.Latest()} {
			m.compare(t, s, now, folds)
		}
	})
}

func (m *model) compare(t *rapid.T, s *Snapshot, now muster.Time, folds bool) {
	within := func(what string, got int64, exact *big.Rat, parts int) {
		low := new(big.Rat).Sub(exact, big.NewRat(int64(parts)*13_000, 1)) // a microsecond of the dearest node, and one part rounded down
		if r := big.NewRat(got, 1); r.Cmp(exact) > 0 || r.Cmp(low) < 0 {
			t.Fatalf("%s: %d, exactly %s, of %d parts", what, got, exact.FloatString(3), parts)
		}
	}
	jobs, byJob := map[string]Spend{}, map[string]Spend{}
	s.Costs(0, now, func(c Cost) bool {
		k := fmt.Sprintf("%s %s", c.Month, c.Pool)
		jobs[k] = jobs[k].Add(c.Spend)
		k += " " + string(c.Namespace) + "/" + c.Job
		byJob[k] = byJob[k].Add(c.Spend)
		return true
	})
	byPool := func(i interval) string { return string(i.pool) }
	exactJobs, jobParts := sums(m.allocs, now, byPool)
	exactWhole, parts := sums(m.nodes, now, byPool)
	seen := 0
	s.PoolCosts(0, now, func(c PoolCost) bool {
		k := fmt.Sprintf("%s %s", c.Month, c.Pool)
		if exactWhole[k] == nil {
			t.Fatalf("%s: %v of nothing", k, c)
		}
		seen++
		within(k, c.Whole.Cost, exactWhole[k], parts[k])
		if c.Idle.Cost < 0 || c.Idle.Time < 0 || jobs[k].Add(c.Idle) != c.Whole {
			t.Fatalf("%s: jobs %v and idle %v are not %v", k, jobs[k], c.Idle, c.Whole)
		}
		if c.Month == MonthOf(now) && s.Spent(c.Pool, now) != c.Whole.Cost {
			t.Fatalf("%s: spent %d, whole %d", k, s.Spent(c.Pool, now), c.Whole.Cost)
		}
		return true
	})
	if seen != len(exactWhole) {
		t.Fatalf("%d months and pools, want %v", seen, exactWhole)
	}
	for k, exact := range exactJobs {
		within(k+" jobs", jobs[k].Cost, exact, jobParts[k])
	}
	if folds {
		return
	}
	exactByJob, parts := sums(m.allocs, now, func(i interval) string {
		return fmt.Sprintf("%s %s/%s", i.pool, i.job.Namespace, i.job.Name)
	})
	for k, exact := range exactByJob {
		within(k, byJob[k].Cost, exact, parts[k])
	}
}

// BenchmarkEnds is the end of an allocation, each of a job of its own, a hundred in a
// log entry: with so many rows of cost kept, all of which are there.
func BenchmarkEnds(b *testing.B) {
	for _, rows := range []int{1, maxJobCosts} {
		b.Run(fmt.Sprintf("rows=%d", rows), func(b *testing.B) {
			s, _ := New(1024)
			l := &log{t: b, s: s, now: int64(date(2026, 1, 1, 0))}
			s.costRows = rows
			room := muster.Resources{CPU: 1 << 40, Memory: 1 << 60}
			l.must(&NodeLaunching{ID: "n1", Token: "t", Pool: "p", Offering: muster.Offering{Name: "o", Capacity: room, Price: 1e12}})
			l.must(&NodeLaunched{ID: "n1", Instance: "i"})
			l.must(&NodeJoined{ID: "n1", Capacity: room})
			sp := spec(1, half)
			ends := func(i, batch int) [][]byte {
				var out [][]byte
				f, plan := &AllocsReported{Node: "n1"}, &PlanCommitted{}
				for range batch {
					uid := muster.JobUID(fmt.Sprintf("u%d", i))
					l.must(&JobSubmitted{Key: key(fmt.Sprintf("j%d", i)), UID: uid, Spec: sp})
					plan.Placements = append(plan.Placements, Placement{UID: uid, Version: 1, Index: 0, Attempt: 1, Node: "n1"})
					f.Allocs = append(f.Allocs, succeeded(muster.NewAllocID(uid, 0, 1)))
					i++
				}
				l.must(plan)
				l.entries = l.entries[:0:0]
				e, err := s.Encode(f)
				if err != nil {
					b.Fatal(err)
				}
				return append(out, e)
			}
			const batch = 100
			i := 0
			index := uint64(1 << 40)
			fill := func() {
				index++
				e := ends(i, batch)
				l.now += 1e6
				b.StartTimer()
				s.Apply(index, 1, l.now, e)
				b.StopTimer()
				i += batch
			}
			b.StopTimer()
			for i < rows {
				fill()
			}
			b.ResetTimer()
			for range b.N {
				fill()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*batch), "ns/end")
		})
	}
}
