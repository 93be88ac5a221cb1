package size

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/growthtest"
	"github.com/musterhq/muster/internal/state"
)

// failedOnce is a cluster in which each member of job a has failed once: the first by the fault of each of the nodes, which
// are at the pool's maximum, the others for an input. All are due. The nodes are full again unless there is room.
func failedOnce(t testing.TB, nodes, members int, room bool) *cluster {
	c := newCluster(t)
	c.read(fmt.Sprintf("pool p max=%d\noffer large cpu=100 memory=64GiB price=5\njob a count=%d cpu=1 memory=1MiB prio=50", nodes, members))
	var offers []muster.Offering
	c.s.Latest().Offerings(func(o *muster.Offering) bool { offers = append(offers, *o); return true })
	ids := make([]muster.NodeID, nodes)
	for i := range ids {
		ids[i] = muster.NodeID(fmt.Sprintf("n%05d", i))
		c.do(&state.NodeLaunching{ID: ids[i], Token: muster.Token(ids[i]), Pool: "p", Offering: offers[0]})
		c.do(&state.NodeLaunched{ID: ids[i], Instance: muster.InstanceID(ids[i])})
		c.do(&state.NodeJoined{ID: ids[i], Capacity: offers[0].Capacity, Boot: "b", Attributes: map[string]string{"arch": "amd64"}})
	}
	for at := 0; at < members; {
		for i, id := range ids {
			n, class, reason := min(100, members-at), muster.FailureOutside, muster.ReasonInput
			if at < nodes && i == at {
				n, class, reason = min(n, 1), muster.FailureNode, muster.ReasonNodeFault
			}
			f, ended := &state.PlanCommitted{}, &state.AllocsReported{Node: id}
			for range n {
				p := state.Placement{UID: "ua", Version: 1, Index: at, Attempt: 1, Node: id}
				f.Placements = append(f.Placements, p)
				ended.Allocs = append(ended.Allocs, state.AllocUpdate{ID: p.Alloc(), Status: muster.AllocEnded, Outcome: muster.OutcomeFailed, ExitCode: 1,
					Failure: &muster.Failure{Class: class, Reason: reason, Message: "it failed"}, Output: &state.Output{Stage: state.OutputComplete}})
				at++
			}
			if n > 0 {
				c.do(f)
				c.do(ended)
			}
			if class == muster.FailureNode {
				c.do(&state.NodeHealthChanged{ID: id, Health: muster.NodeGood})
			}
		}
	}
	if !room {
		c.read(fmt.Sprintf("job filler count=%d cpu=100 memory=1MiB prio=60", nodes))
		for i, id := range ids {
			c.do(&state.PlanCommitted{Placements: []state.Placement{{UID: "ufiller", Version: 1, Index: i, Attempt: 1, Node: id}}})
		}
	}
	c.now = c.now.Add(time.Hour)
	if got := c.s.Latest().JobByUID("ua").Retrying; got != members {
		t.Fatalf("%d members wait", got)
	}
	c.advance()
	Plan(c.view, c.blocks, c.now, false)
	return c
}

// D13: a pass where every node has failed some member, so that there are as many sets of avoided nodes as nodes. All nodes
// are idle and have room: it is the most that there is to look at.
func BenchmarkGrowthAvoidedSets(b *testing.B) {
	growthtest.Run(b, "nodes", 1000, func(b *testing.B, nodes int) (before, pass func()) {
		c := failedOnce(b, nodes, nodes, true)
		return nil, func() { Plan(c.view, c.blocks, c.now, false) }
	})
}

// The same where members wait for room: more than the nodes that fail them have.
func BenchmarkGrowthAvoidedSetsFull(b *testing.B) {
	growthtest.Run(b, "nodes", 1000, func(b *testing.B, nodes int) (before, pass func()) {
		c := failedOnce(b, nodes, nodes, false)
		return nil, func() { Plan(c.view, c.blocks, c.now, false) }
	})
}

// A pass after spot prices have changed, as they do each minute.
func BenchmarkGrowthPrices(b *testing.B) {
	growthtest.Run(b, "nodes", 1000, func(b *testing.B, nodes int) (before, pass func()) {
		c := failedOnce(b, nodes, nodes, true)
		var sale []muster.Offering
		c.s.Latest().Offerings(func(o *muster.Offering) bool { sale = append(sale, *o); return true })
		before = func() {
			sale[0].Price++
			c.do(&state.OfferingsSeen{Provider: sale[0].Provider, Offerings: slices.Clone(sale)})
		}
		return before, c.advance
	})
}

// D14: a pass, and the change before it, over members that are due for another attempt.
func BenchmarkGrowthDueRetries(b *testing.B) {
	growthtest.Run(b, "members", 250_000, func(b *testing.B, members int) (before, pass func()) {
		const nodes = 1000
		c := failedOnce(b, nodes, members, false)
		attempt, step := 1, 0
		before = func() {
			// By turns a node comes free, and a member that failed before is placed there and fails again.
			step++
			m := c.s.Latest().Member("ua", nodes+step/3)
			switch step % 3 {
			case 1:
				c.do(&state.AllocsReported{Node: "n00000", Allocs: []state.AllocUpdate{{ID: muster.NewAllocID("ufiller", 0, attempt), Status: muster.AllocEnded,
					Outcome: muster.OutcomeFailed, Failure: &muster.Failure{Class: muster.FailureOutside, Reason: muster.ReasonInput}}}})
				attempt++
			case 2:
				c.do(&state.PlanCommitted{Placements: []state.Placement{{UID: "ua", Version: 1, Index: m.Index, Attempt: m.Attempt + 1, Node: "n00000"}}})
				c.do(&state.AllocsReported{Node: "n00000", Allocs: []state.AllocUpdate{{ID: muster.NewAllocID("ua", m.Index, m.Attempt+1), Status: muster.AllocEnded,
					Outcome: muster.OutcomeFailed, Failure: &muster.Failure{Class: muster.FailureOutside, Reason: muster.ReasonInput}}}})
			default:
				c.do(&state.PlanCommitted{Placements: []state.Placement{{UID: "ufiller", Version: 1, Index: 0, Attempt: attempt, Node: "n00000"}}})
			}
		}
		return before, func() {
			c.advance()
			Plan(c.view, c.blocks, c.now, false)
		}
	})
}
