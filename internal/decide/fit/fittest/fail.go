package fittest

import (
	"fmt"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

// FailOnce submits a job of so many members of one cpu, and has each of them fail once, so that all are due for another
// attempt: the first by the fault of each of the nodes, the others by their own. The nodes must be empty.
func (c *Cluster) FailOnce(name string, count int, nodes []muster.NodeID) {
	c.t.Helper()
	c.Do(fmt.Sprintf("job %s count=%d cpu=1 memory=1MiB attempts=3 backoff=1s", name, count))
	j := c.Snapshot().Job(muster.JobKey{Namespace: muster.DefaultNamespace, Name: name})
	for at := 0; at < count; {
		f := &state.PlanCommitted{}
		ended := make([]state.AllocsReported, len(nodes))
		for i, id := range nodes {
			u := state.AllocUpdate{Status: muster.AllocEnded, Outcome: muster.OutcomeFailed, ExitCode: 1,
				Failure: &muster.Failure{Class: muster.FailureUser, Reason: muster.ReasonExit, Message: "exit code 1"}}
			n := min(int(c.Snapshot().Node(id).Capacity.CPU/1000), count-at)
			if at < len(nodes) {
				n = min(n, 1)
				u.Failure = &muster.Failure{Class: muster.FailureNode, Reason: muster.ReasonNodeFault, Message: "disk"}
			}
			ended[i].Node = id
			for range n {
				p := state.Placement{UID: j.UID, Version: j.Version, Index: at, Attempt: 1, Node: id}
				f.Placements = append(f.Placements, p)
				u.ID = p.Alloc()
				ended[i].Allocs = append(ended[i].Allocs, u)
				at++
			}
		}
		if r, ok := c.Apply(f).(*state.PlanResult); !ok || len(r.Refused) > 0 {
			c.t.Fatalf("%+v", r)
		}
		for i := range ended {
			if len(ended[i].Allocs) == 0 {
				continue
			}
			if err, bad := c.Apply(&ended[i]).(error); bad {
				c.t.Fatal(err)
			}
			if c.Snapshot().Node(ended[i].Node).Health != muster.NodeGood {
				// It is probed, and proves to be ready.
				c.Do(fmt.Sprintf("health %s good", ended[i].Node))
			}
		}
	}
	c.now = c.now.Add(time.Minute)
}
