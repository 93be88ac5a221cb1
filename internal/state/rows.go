package state

import (
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

// Rows are immutable once they are in a tree: apply copies, changes the copy,
// and puts it back. Readers may keep them for as long as they like.

// Run is one version of a job: what its allocations share.
type Run struct {
	Key     muster.JobKey `cbor:"1,keyasint"`
	UID     muster.JobUID `cbor:"2,keyasint"`
	Version uint64        `cbor:"3,keyasint"`
	// Spec has its defaults filled in.
	Spec *api.JobSpec `cbor:"4,keyasint"`
	// Architectures are those that the image is for, as the server knew them when this version was
	// submitted; empty: not known, or any.
	Architectures []string `cbor:"5,keyasint,omitempty"`
	// Ask is Spec.Resources in the words of package muster; derived.
	Ask muster.Resources `cbor:"-"`
	// Names is what it asks for of things that have names; nil: nothing; derived.
	Names *muster.NamedAsk `cbor:"-"`
	// Shape is what scheduling sees; equal shapes are decided once; derived.
	Shape ShapeID `cbor:"-"`
	// Keys are its affinity keys, the user's first; derived.
	Keys []muster.AffinityKey `cbor:"-"`
	// priority and count are those of Spec: who looks at ten thousand jobs has fewer places to go to; derived.
	priority, count int
	// bytes is about what Spec takes; derived.
	bytes int64
	// retry is Spec.Restart, read once; derived.
	retry api.RestartOn
	// make is what Make tells; derived.
	make string
	// needs are Spec.Constraints and what follows from the rest of Spec, ready to be met; derived.
	needs []muster.Constraint
}

// Priority of the job.
func (r *Run) Priority() int { return r.priority }

// Job is a job's row. Invariant: waiting + placed + succeeded + failed + stopped = Count,
// where waiting = Untried + Retrying while the job is live. Members of a service beyond its count are in none of them.
type Job struct {
	Run    *Run              `cbor:"-"`
	UID    muster.JobUID     `cbor:"1,keyasint"`
	Key    muster.JobKey     `cbor:"2,keyasint"`
	Stage  muster.JobStage   `cbor:"3,keyasint"`
	Ended  muster.Time       `cbor:"4,keyasint,omitempty"`
	Result muster.JobOutcome `cbor:"5,keyasint,omitempty"`
	// Reason says why it ended as it did.
	Reason    string      `cbor:"6,keyasint,omitempty"`
	Version   uint64      `cbor:"7,keyasint"`
	Submitted muster.Time `cbor:"8,keyasint"`
	// Age is the log index of this version's submission, or of the retry that had it live again: the order of
	// "first come".
	Age uint64 `cbor:"9,keyasint"`
	// Modified is the log index of the last change of the row.
	Modified uint64 `cbor:"10,keyasint"`
	// NextIndex is the first member without a row: it and those after it were never placed.
	NextIndex int `cbor:"11,keyasint"`
	// Retrying members have a row and wait for an attempt; Placed ones have a live allocation.
	Retrying  int `cbor:"12,keyasint"`
	Placed    int `cbor:"13,keyasint"`
	Succeeded int `cbor:"14,keyasint"`
	Failed    int `cbor:"15,keyasint"`
	Stopped   int `cbor:"16,keyasint"`
	// Running counts allocations in status running; LiveAllocs all that have not
	// ended, of any version.
	Running    int `cbor:"17,keyasint"`
	LiveAllocs int `cbor:"18,keyasint"`
	// AttemptBase is added to a member's attempts, so that allocation ids of a
	// replaced version are not used again; MaxAttempt is the highest used.
	AttemptBase int `cbor:"19,keyasint,omitempty"`
	MaxAttempt  int `cbor:"20,keyasint,omitempty"`
	// Parked, if not empty, says why the scheduler has given the job up until ParkedUntil (0: until it changes).
	Parked      string      `cbor:"21,keyasint,omitempty"`
	ParkedUntil muster.Time `cbor:"22,keyasint,omitempty"`
	// OutputBytes is what is stored of its output in the blob store.
	OutputBytes int64 `cbor:"23,keyasint,omitempty"`
	// Pruned: its stored output was deleted to keep the quota.
	Pruned bool `cbor:"24,keyasint,omitempty"`
	// Env is set if its members are runners.
	Env *Environment `cbor:"40,keyasint,omitempty"`
	// Standing is set if its members run until they are stopped.
	Standing *Standing `cbor:"50,keyasint,omitempty"`
	// Reserved is the node on which room is kept for one of its members; empty: none.
	Reserved muster.NodeID `cbor:"91,keyasint,omitempty"`
}

// Count of members; of an environment and of a system job those that were ever wanted.
func (j *Job) Count() int {
	if j.Env != nil {
		return j.Env.Wanted
	}
	if j.Standing != nil && j.Run.System() {
		return j.Standing.Wanted
	}
	return j.Run.count
}

// Priority of its members that wait.
func (j *Job) Priority() int {
	if j.Env != nil {
		return j.Env.Priority
	}
	return j.Run.priority
}

// counts reports whether an allocation is of one of its members now: one of the version that runs; of an environment
// all are, and of a standing job those within its count.
func (j *Job) counts(a *Alloc) bool {
	switch {
	case j.Env != nil:
		return true
	case j.Standing != nil:
		return a.Index < j.Count()
	}
	return a.Version == j.Version
}

// Untried is how many members were never placed and still want to be.
func (j *Job) Untried() int {
	if j.Stage != muster.JobLive {
		return 0
	}
	return max(j.Count()-j.NextIndex, 0)
}

// Waiting is how many members want an allocation, now or after their back-off.
func (j *Job) Waiting() int {
	if j.Stage != muster.JobLive {
		return 0
	}
	return j.Untried() + j.Retrying
}

// Unsettled reports whether the scheduler has something to do for the job now,
// apart from retries, which wait in WakeAt.
func (j *Job) Unsettled() bool { return j.Untried() > 0 && j.Parked == "" }

// Member is one of a job's count, with an index below its NextIndex.
type Member struct {
	UID    muster.JobUID       `cbor:"1,keyasint"`
	Index  int                 `cbor:"2,keyasint"`
	Status muster.MemberStatus `cbor:"3,keyasint"`
	// Attempt is the last attempt's number, AttemptBase included.
	Attempt int `cbor:"4,keyasint"`
	// RetryAt is when a waiting member may be placed again.
	RetryAt muster.Time `cbor:"5,keyasint,omitempty"`
	// Failures by class, for the restart policy.
	UserFailures    int             `cbor:"6,keyasint,omitempty"`
	OutsideFailures int             `cbor:"7,keyasint,omitempty"`
	OutsideSince    muster.Time     `cbor:"8,keyasint,omitempty"`
	FailedNodes     []muster.NodeID `cbor:"9,keyasint,omitempty"`
	Reason          string          `cbor:"10,keyasint,omitempty"`
	// Turn is how it does in its version, once it was placed; of standing jobs.
	Turn *Turn `cbor:"50,keyasint,omitempty"`
}

// Alloc is the newest allocation's id.
func (m *Member) Alloc() muster.AllocID { return muster.NewAllocID(m.UID, m.Index, m.Attempt) }

// Alloc is an allocation's row.
type Alloc struct {
	Run     *Run                `cbor:"-"`
	ID      muster.AllocID      `cbor:"1,keyasint"`
	UID     muster.JobUID       `cbor:"2,keyasint"`
	Version uint64              `cbor:"3,keyasint"`
	Index   int                 `cbor:"4,keyasint"`
	Attempt int                 `cbor:"5,keyasint"`
	Node    muster.NodeID       `cbor:"6,keyasint"`
	Desired muster.AllocDesired `cbor:"7,keyasint"`
	// StopCause is why Desired is stop, in words.
	StopCause string             `cbor:"8,keyasint,omitempty"`
	Status    muster.AllocStatus `cbor:"9,keyasint"`
	Outcome   muster.Outcome     `cbor:"10,keyasint,omitempty"`
	ExitCode  int                `cbor:"11,keyasint,omitempty"`
	Signal    string             `cbor:"12,keyasint,omitempty"`
	Failure   *muster.Failure    `cbor:"13,keyasint,omitempty"`
	Placed    muster.Time        `cbor:"14,keyasint"`
	Started   muster.Time        `cbor:"15,keyasint,omitempty"`
	Ended     muster.Time        `cbor:"16,keyasint,omitempty"`
	Output    Output             `cbor:"17,keyasint"`
	Modified  uint64             `cbor:"18,keyasint"`
	// Detail is what its start is at; empty once it runs.
	Detail string `cbor:"19,keyasint,omitempty"`
	// Image is the digest of the image that it was started from.
	Image string `cbor:"20,keyasint,omitempty"`
	// Share is its part of its node's cost, of wholeNode.
	Share int64 `cbor:"21,keyasint,omitempty"`
	// StopReason is for what Desired is stop; empty while it is run.
	StopReason muster.StopReason `cbor:"22,keyasint,omitempty"`
	// StopFor is the job that it gives way to, if it was preempted.
	StopFor muster.JobUID `cbor:"26,keyasint,omitempty"`
	// Grant names the cores and devices that it has.
	Grant muster.Grant `cbor:"25,keyasint,omitzero"`
	// Ready is since when it is, of one that shows that by a command and is of a standing job.
	Ready muster.Time `cbor:"50,keyasint,omitempty"`
	// CPU is the CPU time in microseconds, and PeakMemory the most memory, that it used, as its agent reported
	// with its end. Cost is what its share of the node cost, in millionths, fixed at its end.
	CPU        muster.Time  `cbor:"51,keyasint,omitempty"`
	PeakMemory muster.Bytes `cbor:"52,keyasint,omitempty"`
	Cost       int64        `cbor:"53,keyasint,omitempty"`
	// Runner is its state if it is one; Claim the one that has or had it.
	Runner muster.RunnerState `cbor:"40,keyasint,omitempty"`
	Claim  muster.ClaimID     `cbor:"41,keyasint,omitempty"`
}

// Live reports whether the allocation holds room on its node.
func (a *Alloc) Live() bool { return a.Status != muster.AllocEnded }

// OutputStage tells what became of an allocation's output.
type OutputStage string

// Output stages.
const (
	OutputOpen       OutputStage = ""           // more may come from the node
	OutputComplete   OutputStage = "complete"   // all of it is stored
	OutputIncomplete OutputStage = "incomplete" // some was lost; Why says so
	OutputPruned     OutputStage = "pruned"     // deleted by quota or retention
)

// Output is what is stored of an allocation's output.
type Output struct {
	Stage  OutputStage  `cbor:"1,keyasint,omitempty"`
	Why    string       `cbor:"2,keyasint,omitempty"`
	Stdout Stream       `cbor:"3,keyasint,omitempty"`
	Stderr Stream       `cbor:"4,keyasint,omitempty"`
	Files  []OutputFile `cbor:"5,keyasint,omitempty"`
	// BlobBytes is what it takes in the blob store.
	BlobBytes int64 `cbor:"6,keyasint,omitempty"`
}

// Stream is one stored stream: Inline if it is small, else blobs by offset.
type Stream struct {
	// Size is all that was written; Start the offset of the first byte kept.
	Size   int64  `cbor:"1,keyasint,omitempty"`
	Start  int64  `cbor:"2,keyasint,omitempty"`
	Inline []byte `cbor:"3,keyasint,omitempty"`
}

// OutputFile is one stored declared output.
type OutputFile struct {
	Path string `cbor:"1,keyasint"`
	Size int64  `cbor:"2,keyasint"`
}

// Node is a node's row. Invariant: Used, Taken and LiveAllocs are the sums over its
// live allocations.
type Node struct {
	ID       muster.NodeID     `cbor:"1,keyasint"`
	Token    muster.Token      `cbor:"2,keyasint"`
	Pool     muster.PoolName   `cbor:"3,keyasint"`
	Offering muster.Offering   `cbor:"4,keyasint"`
	Instance muster.InstanceID `cbor:"5,keyasint,omitempty"`

	Stage        muster.NodeStage  `cbor:"6,keyasint"`
	StageReason  string            `cbor:"7,keyasint,omitempty"`
	StageSince   muster.Time       `cbor:"8,keyasint"`
	Health       muster.NodeHealth `cbor:"9,keyasint"`
	HealthReason string            `cbor:"10,keyasint,omitempty"`
	HealthSince  muster.Time       `cbor:"11,keyasint"`
	Intent       muster.NodeIntent `cbor:"12,keyasint"`
	IntentReason string            `cbor:"13,keyasint,omitempty"`

	Capacity   muster.Resources  `cbor:"14,keyasint"`
	Used       muster.Resources  `cbor:"15,keyasint"`
	LiveAllocs int               `cbor:"16,keyasint"`
	Attributes map[string]string `cbor:"17,keyasint,omitempty"`
	Agent      string            `cbor:"18,keyasint,omitempty"` // its version
	Boot       string            `cbor:"19,keyasint,omitempty"` // the run of its agent, see agent.Hello.Run

	Launched muster.Time `cbor:"20,keyasint"`
	Joined   muster.Time `cbor:"21,keyasint,omitempty"`
	Gone     muster.Time `cbor:"22,keyasint,omitempty"`
	// IdleSince is when it last became empty but for members of system jobs, or good again while it was; 0 while
	// it is not, or has not joined.
	IdleSince muster.Time `cbor:"23,keyasint,omitempty"`
	Modified  uint64      `cbor:"24,keyasint"`
	// Served counts allocations that were placed on it.
	Served uint64 `cbor:"25,keyasint,omitempty"`
	// Unheard: a backup was restored and its agent has not spoken since. What runs there is not known.
	Unheard bool `cbor:"26,keyasint,omitempty"`
	// IntentWho turned the intent dial at IntentSince; the fleet turns it back to run at IntentUntil, if that is not 0.
	IntentWho   string      `cbor:"27,keyasint,omitempty"`
	IntentSince muster.Time `cbor:"28,keyasint,omitempty"`
	IntentUntil muster.Time `cbor:"29,keyasint,omitempty"`
	// BootError is what was last in the way of its coming into service.
	BootError string `cbor:"30,keyasint,omitempty"`
	// History is what became of it, the oldest first; HistoryLost how many entries before it are not kept.
	History     []NodeEvent `cbor:"31,keyasint,omitempty"`
	HistoryLost int         `cbor:"32,keyasint,omitempty"`
	// StageWho is the operator who turned the stage dial last, if one did.
	StageWho string `cbor:"33,keyasint,omitempty"`
	// Denied: it is lost, and its provider says that the instance is not there.
	Denied bool `cbor:"34,keyasint,omitempty"`
	// Incapable: it is unready, and says itself that it can take no work.
	Incapable bool `cbor:"35,keyasint,omitempty"`
	// Shared is the sum of its live allocations' shares, Booked what those that ended have had of its cost; empty once it is gone.
	Shared int64        `cbor:"40,keyasint,omitempty"`
	Booked []MonthSpend `cbor:"41,keyasint,omitempty"`
	// System is how many of its live allocations are of system jobs: they keep no node.
	System int `cbor:"50,keyasint,omitempty"`
	// Reserved is room that is kept for one job; nil: none. Whoever asks what is free asks package fit.
	Reserved *Reservation `cbor:"91,keyasint,omitempty"`
	// PlansRefused, once it has happened, is what health is told.
	PlansRefused *PlansRefused `cbor:"92,keyasint,omitempty"`
	// Warm are the affinity keys that it was last given work of, the newest first, at most 16; WarmAt is when.
	// Of images it remembers also what its agent says that it has, and nothing that it says to lack. Empty once it is gone.
	Warm   []muster.AffinityKey `cbor:"60,keyasint,omitempty"`
	WarmAt muster.Time          `cbor:"61,keyasint,omitempty"`
	// Unplaced: it drains because the configuration had no place for it.
	Unplaced bool `cbor:"70,keyasint,omitempty"`
	// Taken names the cores, devices and ports that are in use.
	Taken muster.Taken `cbor:"45,keyasint,omitempty"`
	// Failures of its own making, the oldest first: those within FlakyWindow, a bounded number. Spells are when it was
	// sidelined within the last day, SidelinedUntil is the end of the newest; 0: it is not.
	Failures       []NodeFailure `cbor:"62,keyasint,omitempty"`
	Spells         []muster.Time `cbor:"63,keyasint,omitempty"`
	SidelinedUntil muster.Time   `cbor:"64,keyasint,omitempty"`
	// HostKey is the SSH host key that the instance must show, a line as in ssh_host_ed25519_key.pub.
	// Empty: its provider knows.
	HostKey string `cbor:"65,keyasint,omitempty"`
	// Off is for how long its machine was switched off, by month, the present time not included: it costs nothing then.
	Off []MonthSpend `cbor:"66,keyasint,omitempty"`
}

// NodeEvent is one entry of a node's history.
type NodeEvent struct {
	At     muster.Time `cbor:"1,keyasint"`
	Verb   Verb        `cbor:"2,keyasint"` // of the change, as VerbNodeServing
	Reason string      `cbor:"3,keyasint,omitempty"`
	Who    string      `cbor:"4,keyasint,omitempty"`
}

// Busy reports whether something runs there that keeps the node: all but members of system jobs.
func (n *Node) Busy() bool { return n.LiveAllocs > n.System }

// Free is the room left.
func (n *Node) Free() muster.Resources { return n.Capacity.Sub(n.Used) }

// Cores is how many whole cores can be named on the node.
func (n *Node) Cores() int { return int(n.Capacity.CPU / 1000) }

// Devices of the node.
func (n *Node) Devices() []muster.Device { return n.Offering.Devices }

// Schedulable reports whether new work may go there.
func (n *Node) Schedulable() bool { return muster.Schedulable(n.Stage, n.Health, n.Intent) }

// Pool is an operator's rule for a set of nodes.
type Pool struct {
	Name         muster.PoolName       `cbor:"1,keyasint"`
	Provider     muster.ProviderName   `cbor:"2,keyasint"`
	Offerings    []muster.OfferingName `cbor:"3,keyasint,omitempty"` // empty: all of the provider
	Min          int                   `cbor:"4,keyasint,omitempty"`
	Max          int                   `cbor:"5,keyasint"`
	MaxLaunching int                   `cbor:"6,keyasint"`
	// Deadlines in microseconds.
	IdleTimeout muster.Time `cbor:"7,keyasint"`
	BootTimeout muster.Time `cbor:"8,keyasint"`
	Grace       muster.Time `cbor:"9,keyasint"`
	// Spare is how many nodes without work are kept ready beyond what waits.
	Spare int `cbor:"10,keyasint,omitempty"`
	// PriceFactor is how many times the price of the cheapest offering that fits may be paid; 0: any price.
	PriceFactor float64 `cbor:"11,keyasint,omitempty"`
	// BudgetHour and BudgetMonth are the most that its nodes may cost in an hour and in
	// a month (UTC); 0: no limit.
	BudgetHour  muster.Price `cbor:"12,keyasint,omitempty"`
	BudgetMonth int64        `cbor:"13,keyasint,omitempty"`
	// Spread: members go where the most room is, not the least that will do.
	Spread bool `cbor:"14,keyasint,omitempty"`
	// Meta is attributes of its nodes, without their prefix.
	Meta map[string]string `cbor:"15,keyasint,omitempty"`
	// Sideline is how long a flaky node gets no work, in microseconds; 0: 15 minutes.
	Sideline muster.Time `cbor:"30,keyasint,omitempty"`
	// Ready is the operator's probe of a node's readiness; empty: the agent's own checks do. ReadyTimeout in microseconds.
	Ready        []string    `cbor:"31,keyasint,omitempty"`
	ReadyTimeout muster.Time `cbor:"32,keyasint,omitempty"`
	// Fence is for how long an exclusive allocation goes on without a word from a server, in microseconds; below Grace.
	Fence muster.Time `cbor:"33,keyasint,omitempty"`
	// Static: nothing can confirm that one of its nodes is gone. What ran there is given up when the grace is over.
	Static bool `cbor:"34,keyasint,omitempty"`
	// Runtime is the name of the program that makes containers on its nodes, "none" if none does; empty: only they know.
	Runtime string `cbor:"35,keyasint,omitempty"`
	// Volumes and VolumesWritable are the attributes for volumes of its nodes, as muster.VolumeAttributes makes them of its
	// configuration. Volumes is empty if the log's format does not have it: then only the nodes know.
	Volumes         string `cbor:"36,keyasint,omitempty"`
	VolumesWritable string `cbor:"37,keyasint,omitempty"`
	// StopMost is how many idle nodes may be switched off instead of destroyed; 0: none. StopTime is for how long, in microseconds.
	StopMost int         `cbor:"38,keyasint,omitempty"`
	StopTime muster.Time `cbor:"39,keyasint,omitempty"`
}

// FenceTime is for how long an exclusive allocation goes on without a word from a server. For nodes whose pool is no longer configured it is
// half of the grace that they are judged by.
func (p *Pool) FenceTime() time.Duration {
	switch {
	case p == nil:
		return defaultFence
	case p.Fence > 0:
		return time.Duration(p.Fence) * time.Microsecond
	}
	return time.Duration(p.Grace) * time.Microsecond / 2
}

// defaultFence is half of the grace of a pool that says nothing.
const defaultFence = 30 * time.Second

// Meta is what there is one of.
type Meta struct {
	Cluster string `cbor:"1,keyasint"`
	Epoch   uint64 `cbor:"2,keyasint"`
	// Term and LeaderSince are of the newest leader that has begun.
	Term        uint64      `cbor:"3,keyasint"`
	LeaderSince muster.Time `cbor:"4,keyasint"`
	// Index and Time are of the last entry applied.
	Index uint64      `cbor:"5,keyasint"`
	Time  muster.Time `cbor:"6,keyasint"`
	// Format is the newest format of facts and rows that may be written, 0: FormatFirst; see LogFormat. FormatBy is the version
	// of the server that raised it.
	Format   Format `cbor:"7,keyasint,omitempty"`
	FormatBy string `cbor:"8,keyasint,omitempty"`
}

// Receipt remembers a submission or a retry by its idempotency key.
type Receipt struct {
	Namespace muster.Namespace `cbor:"1,keyasint"`
	Key       string           `cbor:"2,keyasint"`
	Digest    string           `cbor:"3,keyasint"` // of the request
	Job       muster.JobKey    `cbor:"4,keyasint"`
	UID       muster.JobUID    `cbor:"5,keyasint"`
	Version   uint64           `cbor:"6,keyasint"`
	Index     uint64           `cbor:"7,keyasint"`
	// At is when it was submitted.
	At muster.Time `cbor:"8,keyasint,omitempty"`
	// Members is how many members a retry had wait again; 0: the receipt is of a submission.
	Members int `cbor:"9,keyasint,omitempty"`
}
