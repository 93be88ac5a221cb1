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
)

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
	// its retention and then purged; submitted again, its name begins another life.
	JobEnded JobStage = "ended"
)

// JobMoves is the job's transition table.
func JobMoves() []Move[JobStage] {
	return []Move[JobStage]{
		{"", JobLive, "submitted"},
		{JobLive, JobLive, "replaced by a new version"},
		{JobLive, JobStopping, "stopped by a user, or fits no offering"},
		{JobLive, JobEnded, "every member ended"},
		{JobStopping, JobEnded, "its last allocation ended"},
	}
}

// To moves a job's stage along JobMoves.
func (s JobStage) To(noun string, next JobStage) (JobStage, error) {
	return to(noun, JobMoves(), s, next)
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
	// MemberFailed: its restart policy is used up. Final for this version of the job.
	MemberFailed MemberStatus = "failed"
	// MemberStopped: ended by a user's stop. Final for this version of the job.
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
	}
}

// To moves a member's status along MemberMoves.
func (s MemberStatus) To(noun string, next MemberStatus) (MemberStatus, error) {
	return to(noun, MemberMoves(), s, next)
}

// Final reports whether the member will not run again in this version of its job.
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
