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

// Loops is what the leader's loops know beside the state. Nothing of it is in the log: it is lost
// when leadership moves, and the next leader learns it again. A server that does not lead knows
// nothing: its answers are zero values. Implementations must be safe for concurrent use.
type Loops interface {
	// Fleet returns the last decisions of the fleet, nil if it has not decided yet, and the
	// requests that it does not make of providers for a while because they were refused.
	Fleet() (*size.Decisions, []size.Block)
	// Blind returns since when the list of a provider's instances fails, and the error of the last
	// attempt; 0 and nil if the list works.
	Blind(provider muster.ProviderName) (since muster.Time, why error)
	// Rates returns how often a provider is called at most, and what waits for that; nil if nothing
	// limits it.
	Rates(provider muster.ProviderName) []api.CallRate
	// Troubles returns a function of a live node. It says in words which call for that node its
	// provider keeps failing; "" if none. The function reads one copy of the fleet's records, so
	// that a walk over thousands of nodes takes the lock once.
	Troubles() func(n *state.Node) string
	// Unstored returns how many members of a job have ended their command and still count as
	// running because storing their declared outputs has failed, and the error of one of them.
	Unstored(job muster.JobUID) (members int, why error)
	// Paused says why nothing is placed at all; "" if the scheduler runs.
	Paused() string
}

// Explainer explains jobs and nodes of one snapshot, as of one moment. All fields are needed. It is
// made for one request and keeps nothing between calls; methods do not change the snapshot, which
// other requests share.
type Explainer struct {
	Snapshot *state.Snapshot
	Now      muster.Time
	Loops    Loops
}

// Job explains what the waiting members of a job wait for, in the order of the pipeline: queue,
// limits, nodes, offerings, fleet. If no member waits, it says how the members are, and where
// another one would be placed now.
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

// record returns an empty explanation of a job. Its lists are empty and not nil, so that JSON has
// them as [].
func (e *Explainer) record(j *state.Job) *jobRecord {
	d, blocks := e.Loops.Fleet()
	return &jobRecord{
		snap: e.Snapshot, job: j, shape: fit.ShapeOf(j.Run), decisions: d, blocks: blocks, rates: e.Loops.Rates, now: e.Now, paused: e.Loops.Paused(), unstored: e.unstored(j),
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
