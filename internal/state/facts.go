package state

import (
	"reflect"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

// Fact is a past-tense entry in the replicated log: the only way that state
// changes. A new fact is: its struct here with a line in blanks, its apply method in the noun's
// file, and a golden encoding in the test.
type Fact interface {
	// apply changes the state and may refuse: then nothing is changed and the
	// proposer gets the error. The value goes to the proposer.
	apply(s *State, now muster.Time) (any, error)
}

// kind is the number of a kind of fact. Numbers are on disk: never renumber, never reuse. 0 is none.
type kind uint16

// blanks is the table of facts: an empty one of each kind, by number. A new kind goes to the end.
var blanks = [...]func() Fact{
	1:  fact[TermBegan],
	2:  fact[EpochBegan],
	3:  fact[PoolsSet],
	4:  fact[OfferingsSeen],
	5:  fact[JobSubmitted],
	6:  fact[JobStopped],
	7:  fact[JobFailed],
	8:  fact[JobParked],
	9:  fact[JobsPurged],
	10: fact[PlanCommitted],
	11: fact[AllocsReported],
	12: fact[OutputStored],
	13: fact[JobOutputPruned],
	14: fact[NodeLaunching],
	15: fact[NodeLaunched],
	16: fact[NodeAdopted],
	17: fact[NodeJoined],
	18: fact[NodeHealthChanged],
	19: fact[NodeIntentSet],
	20: fact[NodeDraining],
	21: fact[NodeTerminating],
	22: fact[NodeGone],
	23: fact[NodesPurged],
	24: fact[PoolTripped],
	25: fact[PoolResumed],
	26: fact[NodeImagesSeen],
	27: fact[SharesSet],
	28: fact[NamespaceLimited],
	29: fact[EnvironmentSet],
	30: fact[EnvironmentDeleted],
	31: fact[RunnersWanted],
	32: fact[RunnersStopped],
	33: fact[RunnersPurged],
	34: fact[RunnerClaimed],
	35: fact[ClaimExtended],
	36: fact[ClaimsTouched],
	37: fact[ClaimReleased],
	38: fact[ClaimsExpired],
	39: fact[NodeKept],
	40: fact[RoomReserved],
	41: fact[RoomReleased],
	42: fact[NodePlansRefused],
	43: fact[NodeFailed],
	44: fact[NodeEvicted],
	45: fact[RolloutMoved],
	46: fact[SystemSized],
	47: fact[AllocsPurged],
	48: fact[FormatRaised],
	49: fact[ImageLoaded],
	50: fact[ImageRemoved],
	51: fact[NodeRekeyed],
	52: fact[ServerSeen],
	53: fact[ServerRemoved],
	54: fact[ConfigApplied],
	55: fact[BlocksChanged],
	56: fact[InstanceSheltered],
	57: fact[DemandSeen],
	58: fact[HostTaken],
	59: fact[HostTagged],
	60: fact[HostReleased],
	61: fact[HostsFound],
	62: fact[NodeStopped],
	63: fact[NodeStarting],
	64: fact[NodeStarted],
	65: fact[JobRetried],
}

func fact[T any, F interface {
	*T
	Fact
}]() Fact {
	return F(new(T))
}

// kinds has the number of each type in blanks.
var kinds = func() map[reflect.Type]kind {
	all := map[reflect.Type]kind{}
	for k, f := range blanks[1:] {
		all[reflect.TypeOf(f())] = kind(k + 1)
	}
	return all
}()

func kindOf(f Fact) kind { return kinds[reflect.TypeOf(f)] }

// blank is an empty fact of a kind; nil if there is no such kind.
func blank(k kind) Fact {
	if k == 0 || int(k) >= len(blanks) {
		return nil
	}
	return blanks[k]()
}

// TermBegan is the first fact of each leader. The first of all forms the cluster.
type TermBegan struct {
	Term    uint64 `cbor:"1,keyasint"`
	Cluster string `cbor:"2,keyasint"` // drawn by the proposer; kept only if there is none yet
}

// EpochBegan follows a restore from a backup: what agents obeyed before no longer counts.
type EpochBegan struct {
	// Epoch is at least the old one + 1; the proposer draws it from the clock
	// so that two restores of one backup differ.
	Epoch uint64 `cbor:"1,keyasint"`
}

// PoolsSet replaces the pools by those of the configuration.
type PoolsSet struct {
	Pools []Pool `cbor:"1,keyasint"`
}

// OfferingsSeen replaces what one provider sells.
type OfferingsSeen struct {
	Provider  muster.ProviderName `cbor:"1,keyasint"`
	Offerings []muster.Offering   `cbor:"2,keyasint"`
}

// JobSubmitted brings a job or a new version of it. Value: *Submitted.
type JobSubmitted struct {
	Key       muster.JobKey `cbor:"1,keyasint"`
	UID       muster.JobUID `cbor:"2,keyasint"` // drawn; used unless a live job of the name is replaced
	Spec      *api.JobSpec  `cbor:"3,keyasint"` // defaults filled in
	IfVersion *uint64       `cbor:"4,keyasint,omitempty"`
	Replace   bool          `cbor:"5,keyasint,omitempty"`
	// Idempotency key and digest of the request; empty if none was given.
	Idempotency string `cbor:"6,keyasint,omitempty"`
	Digest      string `cbor:"7,keyasint,omitempty"`
	// Note says why, for the history of a standing job.
	Note string `cbor:"8,keyasint,omitempty"`
	// Reverts is the version of it whose spec this is, to go back to.
	Reverts uint64 `cbor:"9,keyasint,omitempty"`
	// Architectures are those that the image is for, as AttributeArch has them; empty: not known, or any.
	Architectures []string `cbor:"10,keyasint,omitempty"`
}

// Submitted is the answer to JobSubmitted.
type Submitted struct {
	Key       muster.JobKey
	UID       muster.JobUID
	Version   uint64
	Index     uint64
	Unchanged bool // nothing was done: same spec, or the same idempotency key
	Repeated  bool
}

// JobRetried has members of a batch job that did not succeed wait again, each with all attempts of its restart
// policy. Refused if there is no such member. Value: *Retried.
type JobRetried struct {
	Key muster.JobKey `cbor:"1,keyasint"`
	// UID is the job that is meant: another one may have its name by now.
	UID muster.JobUID `cbor:"2,keyasint"`
	// Members by index. Empty: those that failed, and those that did not run because the job failed.
	Members []int `cbor:"3,keyasint,omitempty"`
	// All: without Members, also those that were stopped.
	All bool `cbor:"4,keyasint,omitempty"`
	// Idempotency key and digest of the request; empty if none was given.
	Idempotency string `cbor:"5,keyasint,omitempty"`
	Digest      string `cbor:"6,keyasint,omitempty"`
}

// Retried is the answer to JobRetried.
type Retried struct {
	Key     muster.JobKey
	UID     muster.JobUID
	Version uint64
	Index   uint64
	// Members is how many wait again.
	Members int
	// Repeated: nothing was done, as a request with this idempotency key was done before.
	Repeated bool
}

// JobStopped is a user's stop. Value: *Job before it.
type JobStopped struct {
	Key    muster.JobKey `cbor:"1,keyasint"`
	Reason string        `cbor:"2,keyasint,omitempty"`
}

// JobFailed ends a job that can never run. Refused if the job changed since Modified.
type JobFailed struct {
	UID      muster.JobUID `cbor:"1,keyasint"`
	Reason   string        `cbor:"2,keyasint"`
	Modified uint64        `cbor:"3,keyasint"`
}

// JobParked: the scheduler gives the job up until it changes or the time comes.
type JobParked struct {
	UID    muster.JobUID `cbor:"1,keyasint"`
	Reason string        `cbor:"2,keyasint"`
	Until  muster.Time   `cbor:"3,keyasint,omitempty"`
}

// JobsPurged forgets ended jobs with all their allocations.
type JobsPurged struct {
	UIDs []muster.JobUID `cbor:"1,keyasint"`
}

// Placement puts one attempt of a member on a node.
type Placement struct {
	UID     muster.JobUID `cbor:"1,keyasint"`
	Version uint64        `cbor:"2,keyasint"`
	Index   int           `cbor:"3,keyasint"`
	Attempt int           `cbor:"4,keyasint"`
	Node    muster.NodeID `cbor:"5,keyasint"`
	// Grant names the cores and devices that it is given.
	Grant muster.Grant `cbor:"6,keyasint,omitzero"`
}

// Alloc is the id of the allocation that it makes.
func (p *Placement) Alloc() muster.AllocID { return muster.NewAllocID(p.UID, p.Index, p.Attempt) }

// Stop tells a live allocation to stop. Its room counts until its node says that it ended.
type Stop struct {
	Alloc  muster.AllocID    `cbor:"1,keyasint"`
	Reason muster.StopReason `cbor:"2,keyasint"`
	// For is the job whose evaluation wants it: the one that takes the room of a
	// preempted allocation, else the allocation's own.
	For muster.JobUID `cbor:"3,keyasint"`
	// Why in words, as users read it.
	Why string `cbor:"4,keyasint,omitempty"`
}

// PlanCommitted places members and stops allocations. Apply refuses node by node,
// and stop by stop, what does not hold any more. Value: *PlanResult.
type PlanCommitted struct {
	Placements []Placement `cbor:"1,keyasint,omitempty"`
	Stops      []Stop      `cbor:"2,keyasint,omitempty"`
	// Whole: if any of it is refused, nothing of it is committed.
	Whole bool `cbor:"3,keyasint,omitempty"`
}

// PlanResult tells what of a plan was committed.
type PlanResult struct {
	Index        uint64
	Placed       int
	Stopped      int
	Refused      []PlanRefusal
	RefusedStops []StopRefusal
}

// StopRefusal is one stop that was not committed, and why.
type StopRefusal struct {
	Stop   Stop
	Reason string
}

// PlanRefusal is one placement that was not committed, and why.
type PlanRefusal struct {
	Placement Placement
	Reason    string
	// NodeFault: the node, not the member, was the reason.
	NodeFault bool
}

// AllocUpdate is one allocation's reported truth.
type AllocUpdate struct {
	ID       muster.AllocID     `cbor:"1,keyasint"`
	Status   muster.AllocStatus `cbor:"2,keyasint"`
	Outcome  muster.Outcome     `cbor:"3,keyasint,omitempty"`
	ExitCode int                `cbor:"4,keyasint,omitempty"`
	Signal   string             `cbor:"5,keyasint,omitempty"`
	Failure  *muster.Failure    `cbor:"6,keyasint,omitempty"`
	Started  muster.Time        `cbor:"7,keyasint,omitempty"`
	Ended    muster.Time        `cbor:"8,keyasint,omitempty"`
	// Output is set when it is known with the end, as for empty and small streams.
	Output *Output `cbor:"9,keyasint,omitempty"`
	// Detail is what its start is at; Image the digest of its image, once that is known.
	Detail string `cbor:"10,keyasint,omitempty"`
	Image  string `cbor:"11,keyasint,omitempty"`
	// Ready is when it showed that it is ready; 0: not yet, or nothing asks for that.
	Ready muster.Time `cbor:"12,keyasint,omitempty"`
	// CPU is the CPU time in microseconds, and PeakMemory the most memory, that the attempt used. Only with
	// its end, and 0 if not known.
	CPU        muster.Time  `cbor:"13,keyasint,omitempty"`
	PeakMemory muster.Bytes `cbor:"14,keyasint,omitempty"`
}

// AllocsReported is what a node's agent said. Updates of allocations that are
// not on the node, or already ended, are passed over.
type AllocsReported struct {
	Node   muster.NodeID `cbor:"1,keyasint"`
	Allocs []AllocUpdate `cbor:"2,keyasint"`
}

// OutputStored says what became of an ended allocation's output.
type OutputStored struct {
	Alloc  muster.AllocID `cbor:"1,keyasint"`
	Output Output         `cbor:"2,keyasint"`
}

// JobOutputPruned: the stored output of jobs was deleted to keep the quota.
type JobOutputPruned struct {
	UIDs []muster.JobUID `cbor:"1,keyasint"`
}

// NodeLaunching is the intent to create an instance; committed before the provider is asked.
type NodeLaunching struct {
	ID       muster.NodeID   `cbor:"1,keyasint"`
	Token    muster.Token    `cbor:"2,keyasint"`
	Pool     muster.PoolName `cbor:"3,keyasint"`
	Offering muster.Offering `cbor:"4,keyasint"`
	Reason   string          `cbor:"5,keyasint,omitempty"`
	// HostKey is the SSH host key that the instance must show, where the server makes it.
	HostKey string `cbor:"6,keyasint,omitempty"`
}

// NodeRekeyed: the instance shows another SSH host key from now on.
type NodeRekeyed struct {
	ID      muster.NodeID `cbor:"1,keyasint"`
	HostKey string        `cbor:"2,keyasint"`
}

// NodeLaunched: the provider made the instance.
type NodeLaunched struct {
	ID       muster.NodeID     `cbor:"1,keyasint"`
	Instance muster.InstanceID `cbor:"2,keyasint"`
}

// NodeAdopted: an instance with our tags that the state does not know.
type NodeAdopted struct {
	ID       muster.NodeID     `cbor:"1,keyasint"`
	Token    muster.Token      `cbor:"2,keyasint"`
	Pool     muster.PoolName   `cbor:"3,keyasint"`
	Offering muster.Offering   `cbor:"4,keyasint"`
	Instance muster.InstanceID `cbor:"5,keyasint"`
	// Intent is what an operator wanted of it, as its tags say; empty: run.
	Intent muster.NodeIntent `cbor:"6,keyasint,omitempty"`
	// HostKey is as in NodeLaunching.
	HostKey string `cbor:"7,keyasint,omitempty"`
}

// NodeJoined: the agent answered. A second one of a node that serves only updates what the agent says of itself.
type NodeJoined struct {
	ID         muster.NodeID     `cbor:"1,keyasint"`
	Capacity   muster.Resources  `cbor:"2,keyasint"`
	Attributes map[string]string `cbor:"3,keyasint,omitempty"`
	Agent      string            `cbor:"4,keyasint,omitempty"`
	Boot       string            `cbor:"5,keyasint,omitempty"`
}

// NodeHealthChanged turns the health dial.
type NodeHealthChanged struct {
	ID     muster.NodeID     `cbor:"1,keyasint"`
	Health muster.NodeHealth `cbor:"2,keyasint"`
	Reason string            `cbor:"3,keyasint,omitempty"`
	// Denied, of one that is lost: the provider itself says that its instance is not there.
	Denied bool `cbor:"4,keyasint,omitempty"`
	// Incapable, of one that is unready: it says itself that it can take no work.
	Incapable bool `cbor:"5,keyasint,omitempty"`
}

// NodeImagesSeen is which images a node has at hand, by their keys: the one
// used last first. What the node is remembered to be warm for is set right by it.
type NodeImagesSeen struct {
	ID     muster.NodeID        `cbor:"1,keyasint"`
	Images []muster.AffinityKey `cbor:"2,keyasint,omitempty"`
}

// NodeFailed is a failure of the node's own making that no report of an allocation tells, as
// plans for it that are refused again and again. Three within ten minutes sideline it.
type NodeFailed struct {
	ID     muster.NodeID `cbor:"1,keyasint"`
	Reason string        `cbor:"2,keyasint,omitempty"`
	// Prove: it is to be probed before it gets more work.
	Prove bool `cbor:"3,keyasint,omitempty"`
}

// NodeEvicted stops what runs on a node, so that it runs elsewhere. It uses up no attempt. IfUntil is as in NodeIntentSet.
type NodeEvicted struct {
	ID      muster.NodeID `cbor:"1,keyasint"`
	Reason  string        `cbor:"2,keyasint,omitempty"`
	IfUntil muster.Time   `cbor:"3,keyasint,omitempty"`
}

// NodeIntentSet is the operator's. With Until the fleet sets it back to run at
// that time, or of a drain stops what still runs then; such a fact says in IfUntil which end it goes by, and is refused when that is another one by now.
type NodeIntentSet struct {
	ID      muster.NodeID     `cbor:"1,keyasint"`
	Intent  muster.NodeIntent `cbor:"2,keyasint"`
	Reason  string            `cbor:"3,keyasint,omitempty"`
	Who     string            `cbor:"4,keyasint,omitempty"`
	Until   muster.Time       `cbor:"5,keyasint,omitempty"`
	IfUntil muster.Time       `cbor:"6,keyasint,omitempty"`
}

// NodeDraining: no new work; destroyed when empty. Who is set if an operator asked for it.
type NodeDraining struct {
	ID     muster.NodeID `cbor:"1,keyasint"`
	Reason string        `cbor:"2,keyasint,omitempty"`
	Who    string        `cbor:"3,keyasint,omitempty"`
	// Unplaced: the configuration has no place for it. NodeKept takes it back.
	Unplaced bool `cbor:"4,keyasint,omitempty"`
}

// NodeKept: what drained because the configuration had no place for it has one again, and
// serves. Refused if it drains for anything else.
type NodeKept struct {
	ID     muster.NodeID `cbor:"1,keyasint"`
	Reason string        `cbor:"2,keyasint,omitempty"`
}

// NodeStopped: the provider will be asked to switch the machine off until it says that it does. Refused
// when the node has live allocations, is held or is drained.
type NodeStopped struct {
	ID     muster.NodeID `cbor:"1,keyasint"`
	Reason string        `cbor:"2,keyasint,omitempty"`
}

// NodeStarting: the provider will be asked to switch the machine of a stopped node on. Refused when the
// node is held.
type NodeStarting struct {
	ID     muster.NodeID `cbor:"1,keyasint"`
	Reason string        `cbor:"2,keyasint,omitempty"`
}

// NodeStarted: the provider has switched the machine of a starting node on, or does.
type NodeStarted struct {
	ID muster.NodeID `cbor:"1,keyasint"`
}

// NodeTerminating: the provider will be asked to destroy the instance until it
// is gone. With IfIdle it is refused when the node has live allocations.
type NodeTerminating struct {
	ID     muster.NodeID `cbor:"1,keyasint"`
	Reason string        `cbor:"2,keyasint,omitempty"`
	IfIdle bool          `cbor:"3,keyasint,omitempty"`
	// Unexplained: nothing but lost contact speaks for it. The breaker of the pool counts it,
	// and it is refused once that has tripped.
	Unexplained bool `cbor:"4,keyasint,omitempty"`
	// Who is set if an operator asked for it.
	Who string `cbor:"5,keyasint,omitempty"`
	// GiveUp: nothing can confirm that the machine is gone, and the grace is over. What runs there is
	// lost, and may run twice for a while: the machine ends it when it is reached again.
	GiveUp bool `cbor:"6,keyasint,omitempty"`
	// IfLostSince, unless 0: refused when the node is not lost any more, or was heard of since then.
	IfLostSince muster.Time `cbor:"7,keyasint,omitempty"`
}

// NodeGone: confirmed that no instance is there. Its live allocations are lost.
type NodeGone struct {
	ID     muster.NodeID `cbor:"1,keyasint"`
	Reason string        `cbor:"2,keyasint,omitempty"`
	// UnlessHeld: only if no operator holds it by now. It is what lists alone say.
	UnlessHeld bool `cbor:"3,keyasint,omitempty"`
	// IfUnchangedSince, unless 0: refused when the stage or the health of the node has changed after
	// that. A machine that lists left out while it was stopped may be in contact again by now.
	IfUnchangedSince muster.Time `cbor:"4,keyasint,omitempty"`
}

// NodesPurged forgets nodes that are gone.
type NodesPurged struct {
	IDs []muster.NodeID `cbor:"1,keyasint"`
}

// PoolTripped: the breaker holds back what would destroy the pool's nodes
// without an explanation, until PoolResumed.
type PoolTripped struct {
	Pool   muster.PoolName `cbor:"1,keyasint"`
	Reason string          `cbor:"2,keyasint,omitempty"`
}

// PoolResumed is the operator's word that destroying may go on. The count begins anew.
type PoolResumed struct {
	Pool   muster.PoolName `cbor:"1,keyasint"`
	Who    string          `cbor:"2,keyasint,omitempty"`
	Reason string          `cbor:"3,keyasint,omitempty"`
}

// RoomReserved keeps room on a node for one member of a job, as it comes free. Refused if the job changed.
type RoomReserved struct {
	Node    muster.NodeID `cbor:"1,keyasint"`
	UID     muster.JobUID `cbor:"2,keyasint"`
	Version uint64        `cbor:"3,keyasint"`
}

// RoomReleased takes a reservation back.
type RoomReleased struct {
	Node   muster.NodeID `cbor:"1,keyasint"`
	UID    muster.JobUID `cbor:"2,keyasint"`
	Reason string        `cbor:"3,keyasint,omitempty"`
}

// NodePlansRefused: plans for a node were refused so often within a while, although nothing
// had changed since they were made. Whatever is wrong there, health is to know.
type NodePlansRefused struct {
	ID     muster.NodeID `cbor:"1,keyasint"`
	Count  int           `cbor:"2,keyasint"`
	Reason string        `cbor:"3,keyasint,omitempty"`
}
