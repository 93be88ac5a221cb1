package state

import (
	"strings"

	"github.com/musterhq/muster"
)

// Verb says what a change did to a row: noun.change. It is the type of the API's event, and is kept in the history of nodes. What
// events say in a sentence is in package present.
type Verb string

// The verbs, except for those that the functions below make.
const (
	VerbNodeLaunching    Verb = "node.launching"     // an instance was requested
	VerbNodeBooting      Verb = "node.booting"       // the provider has made the instance
	VerbNodeAdopted      Verb = "node.adopted"       // an instance without a node got one
	VerbNodeServing      Verb = "node.serving"       // the agent answered for the first time
	VerbNodeRejoined     Verb = "node.rejoined"      // the agent is in contact again
	VerbNodeMetadata     Verb = "node.metadata"      // what the agent says of the node has changed: capacity, attributes, version
	VerbNodeDraining     Verb = "node.draining"      // it gets no more work
	VerbNodeKept         Verb = "node.kept"          // it serves again
	VerbNodeStopped      Verb = "node.stopped"       // its machine is to be switched off
	VerbNodeStarting     Verb = "node.starting"      // its machine is to be switched on
	VerbNodeTerminating  Verb = "node.terminating"   // its instance is to be destroyed
	VerbNodeGone         Verb = "node.gone"          // the instance is gone
	VerbNodePurged       Verb = "node.purged"        // the row was deleted
	VerbNodeEvicted      Verb = "node.evicted"       // it is drained because of its health
	VerbNodeHealthReason Verb = "node.health-reason" // its health has another reason
	VerbNodeUnready      Verb = "node.unready"       // not in contact, or not ready
	VerbNodeFlaky        Verb = "node.flaky"         // it failed work that succeeds elsewhere
	VerbNodeUsed         Verb = "node.used"          // capacity of it is in use
	VerbNodeFreed        Verb = "node.freed"         // capacity of it is free again
	VerbNodeImages       Verb = "node.images"        // its images have changed
	VerbNodeReserved     Verb = "node.reserved"      // its capacity is reserved for a job
	VerbNodeReleased     Verb = "node.released"      // its capacity is no longer reserved
	VerbNodePlansRefused Verb = "node.plans-refused" // plans for it were refused several times

	VerbJobSubmitted    Verb = "job.submitted"     // a new job
	VerbJobUpdated      Verb = "job.updated"       // a new version of a service or system job
	VerbJobReplaced     Verb = "job.replaced"      // a new version; the members of the old one stop
	VerbJobRetried      Verb = "job.retried"       // members of it that did not succeed wait again
	VerbJobStopping     Verb = "job.stopping"      // its members stop
	VerbJobEnded        Verb = "job.ended"         // all members have ended
	VerbJobPurged       Verb = "job.purged"        // the row was deleted
	VerbJobParked       Verb = "job.parked"        // it is not scheduled for now
	VerbJobUnparked     Verb = "job.unparked"      // it is scheduled again
	VerbJobSized        Verb = "job.sized"         // a system job has another number of members
	VerbJobReserved     Verb = "job.reserved"      // capacity is reserved for it
	VerbJobReleased     Verb = "job.released"      // no capacity is reserved for it any more
	VerbJobOutputPruned Verb = "job.output-pruned" // its output was deleted

	VerbAllocPlaced   Verb = "alloc.placed"   // it has a node
	VerbAllocStarting Verb = "alloc.starting" // its sandbox is being made
	VerbAllocRunning  Verb = "alloc.running"  // its command runs
	VerbAllocStopping Verb = "alloc.stopping" // it is stopping
	VerbAllocClaimed  Verb = "alloc.claimed"  // a client has the runner
	VerbAllocEnded    Verb = "alloc.ended"    // it has ended; the row has the outcome
	VerbAllocOutput   Verb = "alloc.output"   // how much of its output is stored has changed
	VerbAllocPurged   Verb = "alloc.purged"   // the row was deleted

	VerbClaimMade     Verb = "claim.made"     // a client got a runner
	VerbClaimExtended Verb = "claim.extended" // its deadline was moved

	VerbEnvironmentSet       Verb = "environment.set"       // a new environment or version
	VerbEnvironmentDeleted   Verb = "environment.deleted"   // no more claims
	VerbEnvironmentWants     Verb = "environment.wants"     // another number of warm runners is wanted
	VerbEnvironmentAlerted   Verb = "environment.alerted"   // too few of its runners are warm
	VerbEnvironmentRecovered Verb = "environment.recovered" // enough of its runners are warm again

	VerbPoolTripped Verb = "pool.tripped" // the breaker stops the destruction of nodes
	VerbPoolResumed Verb = "pool.resumed" // an operator resumed the pool
	VerbPoolSuspect Verb = "pool.suspect" // many nodes failed at once

	VerbNamespaceLimited Verb = "namespace.limited" // limits of a namespace

	VerbImageLoaded  Verb = "image.loaded"  // an image was loaded on the server
	VerbImageRemoved Verb = "image.removed" // a loaded image was removed

	VerbConfigPools     Verb = "config.pools"     // the pools of the configuration
	VerbConfigApplied   Verb = "config.applied"   // another configuration of the cluster is in force
	VerbConfigOfferings Verb = "config.offerings" // what providers offer, and prices
	VerbConfigShares    Verb = "config.shares"    // the shares of namespaces
	VerbConfigTerm      Verb = "config.term"      // a new leader
	VerbConfigEpoch     Verb = "config.epoch"     // a restore from a backup
)

// isHistory reports whether a change of a node is kept in its history. What work does to its room is not: the allocations show that.
func (v Verb) isHistory() bool {
	switch v {
	case "", VerbNodeUsed, VerbNodeFreed, VerbNodeImages:
		return false
	}
	return true
}

// verbOfHealth is for a node that has come to a health: node.good and so on.
func verbOfHealth(h muster.NodeHealth) Verb { return Verb("node." + string(h)) }

// verbOfIntent is for a node that an operator intends something else for.
func verbOfIntent(i muster.NodeIntent) Verb { return Verb("node.intent-" + string(i)) }

func (v Verb) isIntent() bool { return strings.HasPrefix(string(v), string(verbOfIntent(""))) }

// verbOfStatus is for an allocation that has come to a status.
func verbOfStatus(s muster.AllocStatus) Verb { return Verb("alloc." + string(s)) }

// verbOfClaim is for a claim that has ended.
func verbOfClaim(s muster.ClaimState) Verb { return Verb("claim." + string(s)) }

// verbOfRollout is for a job whose rollout has come to a stage.
func verbOfRollout(s muster.RolloutStage) Verb { return Verb("job.rollout-" + string(s)) }
