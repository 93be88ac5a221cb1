package muster

// JobUID tells apart jobs that had the same name one after the other. A version
// that replaces a live job keeps its uid; one that is submitted after the end has its own.
type JobUID string

// JobType says how a job's members are meant to run.
type JobType string

// Job types.
const (
	// JobBatch runs each member to completion.
	JobBatch JobType = "batch"
	// JobService keeps its members running until it is stopped.
	JobService JobType = "service"
	// JobSystem keeps one member running on each node that fits. It never makes a node wanted, and keeps none.
	JobSystem JobType = "system"
)

// Standing reports whether members run until they are stopped: one that ends by itself is started again.
func (t JobType) Standing() bool { return t == JobService || t == JobSystem }

// JobStage is where a job is in its life.
type JobStage string

const (
	// JobLive: members are waiting or running. Set when the job is submitted.
	// Next is ended when each member has ended, or stopping when a user stops it.
	// A member that cannot be placed waits, and the job says why.
	JobLive JobStage = "live"
	// JobStopping: no member will be placed again; its live allocations have been
	// told to stop. Set by a user's stop, or when the job can never run. Next is ended when the last
	// allocation has; each has a grace time and is killed after it.
	JobStopping JobStage = "stopping"
	// JobEnded: nothing of it runs and nothing will. Has a JobOutcome. It is kept for
	// its retention and then purged; submitted again, its name begins another life. Next is live,
	// when a user retries members of a batch job that did not succeed.
	JobEnded JobStage = "ended"
)

// JobMoves is the job's transition table.
func JobMoves() []Move[JobStage] {
	return []Move[JobStage]{
		{"", JobLive, "submitted"},
		{JobLive, JobLive, "replaced by a new version, or a service that is changed"},
		{JobLive, JobStopping, "stopped by a user, or fits no offering"},
		{JobLive, JobEnded, "every member ended"},
		{JobStopping, JobEnded, "its last allocation ended"},
		{JobEnded, JobLive, "members that did not succeed are retried"},
	}
}

// To moves a job's stage along JobMoves.
func (s JobStage) To(noun string, next JobStage) (JobStage, error) {
	return to(noun, JobMoves(), s, next)
}

// RolloutStage is where a service or system job is in giving its members a new version.
type RolloutStage string

const (
	// RolloutRolling: members are given the version a few at a time, or the first version proves itself. Set when a
	// version is submitted that runs differently. Next is done, or failed.
	RolloutRolling RolloutStage = "rolling"
	// RolloutDone: each member has run the version for long enough; it is stable. Next is rolling, with another version.
	RolloutDone RolloutStage = "done"
	// RolloutFailed: members would not run in the version. No other member is given it until the job is submitted
	// again. Members that have to be started anyway are started in it.
	RolloutFailed RolloutStage = "failed"
)

// RolloutMoves is the rollout's transition table.
func RolloutMoves() []Move[RolloutStage] {
	return []Move[RolloutStage]{
		{"", RolloutRolling, "submitted"},
		{RolloutRolling, RolloutRolling, "another version submitted"},
		{RolloutRolling, RolloutDone, "each member has run for long enough"},
		{RolloutRolling, RolloutFailed, "a member was not healthy in time, or ended again and again"},
		{RolloutDone, RolloutRolling, "another version submitted"},
		{RolloutFailed, RolloutRolling, "submitted again, or reverted"},
	}
}

// To moves a rollout's stage along RolloutMoves.
func (s RolloutStage) To(noun string, next RolloutStage) (RolloutStage, error) {
	return to(noun, RolloutMoves(), s, next)
}

// JobOutcome is how a job ended.
type JobOutcome string

const (
	// JobSucceeded: every member succeeded.
	JobSucceeded JobOutcome = "succeeded"
	// JobFailed: at least one member failed for good, or the job could never run.
	JobFailed JobOutcome = "failed"
	// JobStopped: a user ended it before every member had.
	JobStopped JobOutcome = "stopped"
)

// MemberStatus is where one of a job's count stands.
type MemberStatus string

const (
	// MemberWaiting: has no live allocation and wants one, now or when its
	// back-off is over. Every member begins so. Next is placed.
	MemberWaiting MemberStatus = "waiting"
	// MemberPlaced: has one live allocation. Next is whatever that allocation's end means.
	MemberPlaced MemberStatus = "placed"
	// MemberSucceeded: an allocation of it succeeded. Final for this version of the job.
	MemberSucceeded MemberStatus = "succeeded"
	// MemberFailed: its restart policy is used up. Final for this version of the job, unless a user retries it.
	MemberFailed MemberStatus = "failed"
	// MemberStopped: ended by a user's stop, final for this version of the job unless a user retries it; or beyond the count of a
	// service that was made smaller, and waiting again once the service is made larger.
	MemberStopped MemberStatus = "stopped"
)

// MemberMoves is the member's transition table.
func MemberMoves() []Move[MemberStatus] {
	return []Move[MemberStatus]{
		{"", MemberWaiting, "job submitted"},
		{MemberWaiting, MemberPlaced, "plan committed"},
		{MemberWaiting, MemberStopped, "job stopped"},
		{MemberPlaced, MemberWaiting, "allocation failed or lost, restart policy allows another"},
		{MemberPlaced, MemberSucceeded, "allocation succeeded"},
		{MemberPlaced, MemberFailed, "allocation failed, restart policy used up"},
		{MemberPlaced, MemberStopped, "allocation stopped"},
		{MemberStopped, MemberWaiting, "its job, a service, wants so many members again; or it is retried"},
		{MemberFailed, MemberWaiting, "retried by a user"},
	}
}

// To moves a member's status along MemberMoves.
func (s MemberStatus) To(noun string, next MemberStatus) (MemberStatus, error) {
	return to(noun, MemberMoves(), s, next)
}

// Final reports whether the member will not run again in this version of its job unless a user retries it.
func (s MemberStatus) Final() bool {
	return s == MemberSucceeded || s == MemberFailed || s == MemberStopped
}

// Priorities of jobs and environments.
const (
	MinPriority     = 0
	MaxPriority     = 100
	DefaultPriority = 50
	// DefaultMaxPriority is the highest that the jobs of a namespace may have unless its limits say otherwise.
	DefaultMaxPriority = 70
)
