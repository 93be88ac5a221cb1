package explain

import (
	"fmt"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/decide/size"
	"github.com/musterhq/muster/internal/present"
	"github.com/musterhq/muster/internal/state"
)

// Loops is what the leader's loops know beside the state. A server that does not lead knows
// nothing: its answers are zero values.
type Loops interface {
	// Fleet returns what the fleet decided last, nil if nothing is known, and what it does not ask of
	// providers for a while.
	Fleet() (*size.Decisions, []size.Block)
	// Blind returns since when a provider's instances cannot be listed and the error of the last
	// list; 0 and nil if they can.
	Blind(provider muster.ProviderName) (since muster.Time, why error)
	// Troubles returns a function of a live node: which call for it its provider keeps failing, in
	// words; "" if none.
	Troubles() func(n *state.Node) string
	// Unstored returns how many members of a job have come to the end of their command and wait for their declared
	// outputs to be stored, after that has failed, and the error of one of them.
	Unstored(job muster.JobUID) (members int, why error)
	// Paused says why nothing is placed at all; "" if the scheduler runs.
	Paused() string
}

// Explainer explains jobs and nodes of one snapshot, as of one moment. All fields are needed.
type Explainer struct {
	Snapshot *state.Snapshot
	Now      muster.Time
	Loops    Loops
}

// Job explains what the waiting members of a job wait for, from the queue to the cloud. Of a job
// without waiting members it says how they are, and where another member would be placed now.
func (e *Explainer) Job(j *state.Job) api.JobExplanation {
	r := e.record(j)
	r.explain()
	return r.out
}

// Member explains one member of a job. The index must be below the job's count.
func (e *Explainer) Member(j *state.Job, index int) api.JobExplanation {
	r := e.record(j)
	r.out.Member = &index
	r.member(index)
	return r.out
}

// Node explains the stage, health and intent of a node, and when the node ends.
func (e *Explainer) Node(n *state.Node) api.NodeExplanation {
	r := &nodeRecord{trouble: e.Loops.Troubles()(n), snap: e.Snapshot, n: n, now: e.Now}
	if _, err := e.Loops.Blind(n.Offering.Provider); err != nil {
		r.blind = err.Error()
	}
	r.out = api.NodeExplanation{Node: string(n.ID), Text: []string{}, Runs: []api.NodeRuns{}, Index: e.Snapshot.Index()}
	r.explain()
	return r.out
}

// record is an explanation of a job that says nothing yet. Its lists are empty and not nil: JSON has
// them as [].
func (e *Explainer) record(j *state.Job) *jobRecord {
	d, blocks := e.Loops.Fleet()
	return &jobRecord{
		snap: e.Snapshot, job: j, shape: fit.ShapeOf(j.Run), decisions: d, blocks: blocks, now: e.Now, paused: e.Loops.Paused(), unstored: e.unstored(j),
		out: api.JobExplanation{
			Namespace: string(j.Key.Namespace), Job: j.Key.Name, Version: j.Version, Stage: string(j.Stage), Priority: j.Priority(),
			Counts: present.Job(j).Counts, Text: []string{}, Offerings: []api.OfferingSight{}, Coming: []api.NodeComing{},
			Fleet: []api.Wait{}, Blocks: []api.Block{}, Index: e.Snapshot.Index(),
		},
	}
}

// shortly rounds a duration for sentences: to seconds, or to tenths of a second below ten seconds.
func shortly(d time.Duration) string {
	if d = max(d, 0); d >= 10*time.Second {
		return d.Round(time.Second).String()
	}
	return d.Round(100 * time.Millisecond).String()
}

// sentencef appends a sentence to the text of an explanation.
func sentencef(text *[]string, format string, args ...any) {
	*text = append(*text, fmt.Sprintf(format, args...))
}
