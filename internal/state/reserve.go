package state

import (
	"fmt"

	"github.com/musterhq/muster"
)

// Room is reserved on a node for one member of a job that others have passed for too long: what
// comes free there is kept for it until it fits. Node.Reserved and Job.Reserved name each other, or neither does. A
// job that wants nothing, is parked or has another version holds no room, and neither does a node
// that has left service; putJob and putNode see to it.

// Reservation is what is kept on a node, and for whom.
type Reservation struct {
	UID   muster.JobUID    `cbor:"1,keyasint"`
	Room  muster.Resources `cbor:"2,keyasint"`
	Since muster.Time      `cbor:"3,keyasint"`
	// Priority of the job, so that work of a higher one is not kept out without a look at the job.
	Priority int `cbor:"4,keyasint,omitempty"`
}

// PlansRefused is how often plans for a node were refused although nothing had changed since they were made.
type PlansRefused struct {
	Count  int         `cbor:"1,keyasint"` // within the window that ended at Last
	Last   muster.Time `cbor:"2,keyasint"`
	Reason string      `cbor:"3,keyasint,omitempty"`
}

// ReservedFor is the room of the node that is kept for others than the job.
func (n *Node) ReservedFor(uid muster.JobUID) muster.Resources {
	if n.Reserved == nil || n.Reserved.UID == uid {
		return muster.Resources{}
	}
	return n.Reserved.Room
}

func (f *RoomReserved) apply(s *State, now muster.Time) (any, error) {
	n, err := s.node(f.Node)
	if err != nil {
		return nil, err
	}
	j, err := s.jobByUID(f.UID)
	if err != nil {
		return nil, err
	}
	switch {
	case !n.Schedulable():
		return nil, muster.Faultf(muster.FaultConflict, "node %s is %s, %s, intent %s", n.ID, n.Stage, n.Health, n.Intent)
	case n.Reserved != nil:
		return nil, muster.Faultf(muster.FaultConflict, "node %s has reserved capacity already", n.ID)
	case j.Version != f.Version || j.Waiting() == 0 || j.Parked != "" || j.Reserved != "":
		return nil, muster.Faultf(muster.FaultConflict, "job %s changed meanwhile", j.Key)
	case !j.Run.Ask.Fits(n.Capacity):
		return nil, muster.Faultf(muster.FaultConflict, "node %s can never hold a member of job %s", n.ID, j.Key)
	}
	b, c := *n, *j
	b.Reserved = &Reservation{UID: j.UID, Room: j.Run.Ask, Since: now, Priority: j.Priority()}
	c.Reserved = n.ID
	s.putNode(n, &b, VerbNodeReserved)
	s.putJob(j, &c, VerbJobReserved)
	return nil, nil
}

func (f *RoomReleased) apply(s *State, _ muster.Time) (any, error) {
	n, err := s.node(f.Node)
	if err != nil {
		return nil, err
	}
	if n.Reserved == nil || n.Reserved.UID != f.UID {
		return nil, muster.Faultf(muster.FaultConflict, "node %s has no capacity reserved for the job with uid %s", f.Node, f.UID)
	}
	s.release(f.Node, f.UID)
	return nil, nil
}

// release takes a reservation off its node, and with it off its job.
func (s *State) release(id muster.NodeID, uid muster.JobUID) {
	if n, ok := s.t.nodes.Get(&Node{ID: id}); ok && n.Reserved != nil && n.Reserved.UID == uid {
		b := *n
		b.Reserved = nil
		s.putNode(n, &b, VerbNodeReleased)
	}
}

// reservedJob is called before a job's row is written: who has no use for room holds none.
func (s *State) reservedJob(before, after *Job) {
	if after.Reserved != "" && (after.Waiting() == 0 || after.Parked != "") {
		after.Reserved = ""
	}
	if before != nil && before.Reserved != "" && after.Reserved == "" {
		s.t.jobsUID.Set(after) // so that the node's side finds it done
		s.release(before.Reserved, before.UID)
	}
}

// reservedNode is called when a node's row is written: its job learns that the room is gone.
func (s *State) reservedNode(before, after *Node) {
	if before == nil || before.Reserved == nil || after.Reserved != nil {
		return
	}
	if j, ok := s.t.jobsUID.Get(&Job{UID: before.Reserved.UID}); ok && j.Reserved == before.ID {
		c := *j
		c.Reserved = ""
		s.putJob(j, &c, VerbJobReleased)
	}
}

func (f *NodePlansRefused) apply(s *State, now muster.Time) (any, error) {
	n, err := s.node(f.ID)
	if err != nil {
		return nil, err
	}
	if !n.Stage.Live() {
		return nil, nil
	}
	b := *n
	b.PlansRefused = &PlansRefused{Count: f.Count, Last: now, Reason: f.Reason}
	s.putNode(n, &b, VerbNodePlansRefused)
	// So often is a spell by itself: it refuses what it has room for.
	s.failedTimes(&b, FlakyFailures, fmt.Sprintf("%d plans for it were refused, the last: %s", f.Count, f.Reason), false, now)
	return nil, nil
}

// reserved checks that nodes and jobs name each other, and that nobody holds room without a use for it.
func (c *checker) reserved() {
	c.snap.Nodes("", func(n *Node) bool {
		if r := n.Reserved; r != nil {
			if j := c.snap.JobByUID(r.UID); j == nil || j.Reserved != n.ID || j.Waiting() == 0 || j.Parked != "" {
				c.bad("node %s has capacity reserved for the job with uid %s, which cannot use it", n.ID, r.UID)
			}
			if n.Stage != muster.NodeServing {
				c.bad("node %s is %s and has reserved capacity", n.ID, n.Stage)
			}
		}
		return true
	})
	c.snap.t.jobsUID.Scan(func(j *Job) bool {
		if j.Reserved != "" {
			if n := c.snap.Node(j.Reserved); n == nil || n.Reserved == nil || n.Reserved.UID != j.UID {
				c.bad("job %s says that node %s has capacity for it", j.Key, j.Reserved)
			}
		}
		return true
	})
}
