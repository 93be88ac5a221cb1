package state

import (
	"slices"

	"github.com/musterhq/muster"
)

// drafts are a node's and a job's row that one fact changes again and again: each is
// copied once, changed in place and written once. Facts come sorted by node, and members of a job
// come together, so that one of each is nearly as good as all.
//
// While a draft is open the trees have the row as it was: whoever reads such a row
// within the fact asks the drafts. write must be called before the fact ends.
type drafts struct {
	s        *State
	node     *Node
	nodeWas  *Node
	nodeVerb Verb
	job      *Job
	jobWas   *Job
	jobVerb  Verb
	// blames are counted when the rows are written.
	blames []blamed
}

// Node is the draft of a node, or nil if there is none of this id. Booked is its own.
func (d *drafts) Node(id muster.NodeID) *Node {
	if d.nodeWas != nil && d.nodeWas.ID == id {
		return d.node
	}
	d.writeNode()
	row, ok := d.s.t.nodes.Get(&Node{ID: id})
	if !ok {
		return nil
	}
	d.nodeWas = row
	n := *row
	n.Booked = slices.Clone(row.Booked)
	d.node, d.nodeVerb = &n, ""
	return d.node
}

// Job is the draft of a job, or nil if there is none of this uid.
func (d *drafts) Job(uid muster.JobUID) *Job {
	if d.jobWas != nil && d.jobWas.UID == uid {
		return d.job
	}
	row, ok := d.s.t.jobsUID.Get(&Job{UID: uid})
	if !ok {
		d.writeJob()
		return nil
	}
	return d.jobOf(row)
}

// jobOf is the draft of a job whose row in the tree is at hand.
func (d *drafts) jobOf(row *Job) *Job {
	d.writeJob()
	d.jobWas = row
	j := *row
	d.job, d.jobVerb = &j, ""
	return d.job
}

// writeNode puts the node back, if what happened to it has a verb.
func (d *drafts) writeNode() {
	if d.nodeWas != nil && d.nodeVerb != "" {
		if r := d.node.Reserved; r != nil && d.reserved(r.UID) != d.node.ID {
			d.node.Reserved = nil // released while the draft was open
		}
		d.s.putNode(d.nodeWas, d.node, d.nodeVerb)
	}
	d.node, d.nodeWas = nil, nil
}

func (d *drafts) writeJob() {
	if d.jobWas != nil && *d.job != *d.jobWas {
		if d.job.Reserved != "" && !d.keeps(d.job) {
			d.job.Reserved = "" // released while the draft was open
		}
		d.s.putJob(d.jobWas, d.job, d.jobVerb)
	}
	d.job, d.jobWas = nil, nil
}

// write puts the rows that are open back.
func (d *drafts) write() {
	d.writeJob()
	d.writeNode()
	if len(d.blames) > 0 {
		d.settleBlames(d.s.meta.Time)
	}
}

// reserved is the node on which a job says that room is kept for it.
func (d *drafts) reserved(uid muster.JobUID) muster.NodeID {
	j := d.job
	if d.jobWas == nil || j.UID != uid {
		j, _ = d.s.t.jobsUID.Get(&Job{UID: uid})
	}
	if j == nil {
		return ""
	}
	return j.Reserved
}

// keeps reports whether the node that a job names still keeps room for it.
func (d *drafts) keeps(j *Job) bool {
	n := d.node
	if d.nodeWas == nil || n.ID != j.Reserved {
		n, _ = d.s.t.nodes.Get(&Node{ID: j.Reserved})
	}
	return n != nil && n.Reserved != nil && n.Reserved.UID == j.UID
}
