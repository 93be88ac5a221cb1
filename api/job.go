package api

import "time"

// JobSpec is a job as users write it, in YAML or JSON. A field left out means
// its default. Where 0 could not be told from "left out", 0 means the default
// as well: such fields carry a zero tag, by which readers of files refuse a
// written 0 instead of reading it as something else.
type JobSpec struct {
	// Name of the job; one is made when it is empty.
	Name string `json:"name,omitempty" doc:"Name of the job: 1 to 63 lower-case letters, digits, dots and dashes. Empty: generated."`
	// Namespace of the job; "default" when empty.
	Namespace string `json:"namespace,omitempty" doc:"Namespace of the job. Default: default."`
	// Type of the job. Default batch.
	Type string `json:"type,omitempty" enum:"batch,service,system" doc:"batch: each member runs to completion. service: members run until the job is stopped. system: as service, one member on each node that fits. Default: batch."`
	// Count of members, each with its own index in MUSTER_INDEX. Default 1.
	Count int `json:"count,omitempty" minimum:"1" maximum:"1000000" zero:"1" doc:"How many members; each gets its index (from 0) in MUSTER_INDEX. Default: 1, at most 1000000."`
	// Template says what runs, and what it needs. Its fields are fields of the file.
	Template
	// Restart says what happens when a member fails.
	Restart RestartSpec `json:"restart,omitempty" doc:"What happens when a member fails."`
	// Update says how members of a service or system job are given a new version.
	Update *UpdateSpec `json:"update,omitempty" doc:"Of a service or system job: how its members are updated."`
	// Timeout ends a member's attempt that runs longer. Empty: none.
	Timeout Duration `json:"timeout,omitempty" doc:"Time limit of an attempt. Empty or 0s: no limit."`
	// Affinities are conditions that a node had better meet.
	Affinities []AffinitySpec `json:"affinities,omitempty" doc:"Preferred (soft) constraints, each with a weight; a negative weight avoids."`
	// Spread spreads members over the values of attributes.
	Spread []SpreadSpec `json:"spread,omitempty" doc:"Attributes over whose values the members are spread."`
	// DistinctHosts puts at most one member on each node.
	DistinctHosts bool `json:"distinct_hosts,omitempty" doc:"At most one member of the job on each node."`
	// Exclusive: a member is never run by two nodes at once.
	Exclusive bool `json:"exclusive,omitempty" doc:"Never run a member on two nodes at once: its agent kills it when no server has contacted the node for the pool's fence, and it is placed elsewhere only after that. The price: it also ends when the server is away for longer than that. See docs/nodes.md."`
	// Affinity names what the job's members have in common that nodes keep at hand.
	Affinity string `json:"affinity,omitempty" doc:"A name for data that members find cached where others of the same name ran: a data set, a build cache. Among nodes that fit, one that ran the name recently is preferred. Images need none: they are considered anyway."`
	// Outputs are collected from the work directory after the command succeeded.
	Outputs []OutputSpec `json:"outputs,omitempty" doc:"Files or directories kept after the command succeeded."`
	// OutputLimit bounds what is kept of each of stdout and stderr. Default 256MiB.
	OutputLimit Size `json:"output_limit,omitempty" zero:"256MiB" doc:"Most bytes kept of stdout, and of stderr; beyond it the oldest are dropped. Default: 256MiB, 64KiB to 16GiB."`
}

// ReadySpec is a command by which a runner, or a member of a service or system job, shows that it is ready.
type ReadySpec struct {
	Command  []string `json:"command,omitempty" doc:"Run in the sandbox repeatedly until it exits with 0. There is no shell in between."`
	Interval Duration `json:"interval,omitempty" zero:"250ms" doc:"Delay after a failed check. Default: 250ms, at least 10ms."`
	Timeout  Duration `json:"timeout,omitempty" zero:"5s" doc:"Time limit of one check; beyond it the check has failed. Default: 5s."`
	GiveUp   Duration `json:"give_up,omitempty" zero:"2m" doc:"Not ready after this time, it has failed and is ended. Default: 2m."`
}

// ResourcesSpec is what one member needs.
type ResourcesSpec struct {
	CPU float64 `json:"cpu,omitempty" minimum:"0.001" maximum:"4096" zero:"1" unit:"cores" doc:"Cores, as 0.5. Default: 1, or cores."`
	// Cores are whole ones, by name, instead of CPU.
	Cores  int  `json:"cores,omitempty" minimum:"0" maximum:"4096" doc:"Instead of cpu: whole cores, assigned by the scheduler to this member exclusively among members with whole cores. The member runs only on these."`
	Memory Size `json:"memory,omitempty" zero:"256MiB" doc:"For example 64MiB. Default: 256MiB."`
	// MemoryMax is a limit, Memory what is set aside.
	MemoryMax Size `json:"memory_max,omitempty" doc:"Memory limit, if higher than memory, which is the reserved amount. Default: memory."`
	Disk      Size `json:"disk,omitempty" doc:"Disk that a container may write, for example 1GiB. Default: 0, which reserves nothing and lets a container write up to 10GiB."`
	// CPUMax is a limit, CPU what is set aside.
	CPUMax float64 `json:"cpu_max,omitempty" minimum:"0" maximum:"4096" unit:"cores" doc:"CPU limit in cores, even if more are idle. Default: no limit."`
	Pids   int     `json:"pids,omitempty" minimum:"0" maximum:"4194304" doc:"Most processes and threads. Default: 4096."`
	// Devices by model, and ports of the node by number.
	Devices []DeviceAskSpec `json:"devices,omitempty" doc:"Devices, for example GPUs: whole ones, or a part of one."`
	Ports   []int           `json:"ports,omitempty" doc:"Ports of the node that the member itself listens on; no other member gets them. Without an image, or with network: host."`
}

// DeviceAskSpec is what one member needs of one kind of device.
type DeviceAskSpec struct {
	Kind   string   `json:"kind,omitempty" doc:"Default: gpu."`
	Models []string `json:"models,omitempty" doc:"Acceptable models. Default: any. Several devices are all of one model."`
	Count  int      `json:"count,omitempty" minimum:"0" maximum:"64" doc:"Number of whole devices. Default: 1, if part is not set."`
	Part   float64  `json:"part,omitempty" minimum:"0" maximum:"1" doc:"Instead of count: a part of one device, for example 0.5, in steps of 0.001, on nodes whose offering shares its devices. It is always on one device."`
}

// UpdateSpec says how members that run are given a new version of their job.
type UpdateSpec struct {
	MaxParallel     int      `json:"max_parallel,omitempty" minimum:"1" maximum:"1000000" zero:"1" doc:"Most members that an update may make unhealthy at a time. Default: 1."`
	MinHealthyTime  Duration `json:"min_healthy_time,omitempty" zero:"10s" doc:"How long a member must run to be healthy. Default: 10s."`
	HealthyDeadline Duration `json:"healthy_deadline,omitempty" zero:"5m" doc:"If a member is not healthy this time after it was first placed in a version, the rollout fails. Default: 5m, or min_healthy_time and a minute if that is longer."`
	AutoRevert      bool     `json:"auto_revert,omitempty" doc:"When the rollout fails, revert to the newest healthy version. Default: wait for the next submission."`
}

// RestartSpec is the restart policy. Failures of the node's making are always
// moved on, to at most 5 nodes; failures outside back off until give_up.
type RestartSpec struct {
	Attempts   int      `json:"attempts,omitempty" minimum:"1" maximum:"100" zero:"1, or 3 when on is given" doc:"Most attempts of a member; only its own failures count, not node failures. Default: 1; 3 when on is given."`
	On         []string `json:"on,omitempty" doc:"Failures that are retried: exit codes and ranges (\"1\", \"2-5\"), or one of any, timeout, out-of-memory, signal. Empty: none."`
	Backoff    Duration `json:"backoff,omitempty" zero:"1s" doc:"Delay before the second attempt; doubled each time. Default: 1s."`
	BackoffMax Duration `json:"backoff_max,omitempty" zero:"5m" doc:"Longest delay between attempts. Default: 5m, or backoff if that is longer."`
	GiveUp     Duration `json:"give_up,omitempty" zero:"1h" doc:"How long external failures (a registry, an input URL) are retried. Default: 1h."`
}

// ConstraintSpec is a condition on a node's attributes.
type ConstraintSpec struct {
	Attribute string   `json:"attribute" doc:"Name of the node attribute, as os, arch, offering, zone, pool."`
	Op        string   `json:"op,omitempty" enum:"=,!=,<,<=,>,>=,in,not-in,version,regexp,set-contains,is-set,is-not-set" doc:"How the attribute is compared; see docs/scheduling.md. Default: =."`
	Value     string   `json:"value,omitempty"`
	Values    []string `json:"values,omitempty" doc:"For in and not-in."`
}

// AffinitySpec is a condition that a node had better meet.
type AffinitySpec struct {
	Attribute string   `json:"attribute" doc:"As in constraints."`
	Op        string   `json:"op,omitempty" enum:"=,!=,<,<=,>,>=,in,not-in,version,regexp,set-contains,is-set,is-not-set" doc:"As in constraints. Default: =."`
	Value     string   `json:"value,omitempty"`
	Values    []string `json:"values,omitempty" doc:"For in and not-in."`
	Weight    int      `json:"weight,omitempty" minimum:"-100" maximum:"100" zero:"50" doc:"-100 to 100: how strongly nodes that meet it are preferred; negative: avoided. Default: 50."`
}

// SpreadSpec spreads members over the values of an attribute.
type SpreadSpec struct {
	Attribute string         `json:"attribute" doc:"As in constraints: zone, meta.rack."`
	Weight    int            `json:"weight,omitempty" minimum:"1" maximum:"100" zero:"50" doc:"1 to 100: its weight among other spreads and affinities. Default: 50."`
	Targets   []SpreadTarget `json:"targets,omitempty" doc:"Percentage of the members for each value; other values share the rest equally. Default: all values equally."`
}

// SpreadTarget is which part of the members one value should have.
type SpreadTarget struct {
	Value   string `json:"value"`
	Percent int    `json:"percent" minimum:"0" maximum:"100"`
}

// InputSpec is one file put into the work directory. Exactly one of Content,
// Digest alone (uploaded before), or URL with Digest.
type InputSpec struct {
	Path    string  `json:"path" doc:"Its path, relative to the work directory."`
	Content *string `json:"content,omitempty" doc:"The content itself, at most 64KiB."`
	File    string  `json:"file,omitempty" doc:"A local file or directory of the submitting client. The CLI uploads it and replaces it by its digest, a directory by the files in it: at most 1,000 in all. The server rejects it."`
	URL     string  `json:"url,omitempty" doc:"Fetched by the node; digest is required."`
	Digest  string  `json:"digest,omitempty" doc:"sha256:<hex> of the content."`
	Mode    string  `json:"mode,omitempty" doc:"Permission bits in octal. Default: 0644."`
}

// OutputSpec is one file or directory kept after the command succeeded.
type OutputSpec struct {
	Path     string `json:"path" doc:"A file or directory, relative to the work directory."`
	Optional bool   `json:"optional,omitempty" doc:"A missing file is not a failure."`
}

// JobSubmission is the body of POST /v1/jobs.
type JobSubmission struct {
	Spec JobSpec `json:"spec"`
	// IfVersion refuses the submission unless the job is at this version (0: does not exist).
	IfVersion *uint64 `json:"if_version,omitempty" doc:"Refuse unless the job is at this version; 0: unless it does not exist."`
	// Replace stops a running batch job's members and runs the new version.
	Replace bool `json:"replace,omitempty" doc:"For a running batch job: stop its members and run the new version. Without it that is rejected with 409."`
}

// JobSubmitted is its answer.
type JobSubmitted struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	Version   uint64 `json:"version"`
	Index     uint64 `json:"index" doc:"Log index from which events of this submission can be followed."`
	Unchanged bool   `json:"unchanged,omitempty" doc:"The job existed with the same specification; nothing changed."`
}

// JobValidation is the answer of POST /v1/jobs/validate: what a submission of
// the same body would run into, and what it would be with defaults.
type JobValidation struct {
	Spec     JobSpec        `json:"spec" doc:"With defaults filled in."`
	Problems []ProblemField `json:"problems,omitempty" doc:"Errors of the specification. None: it would be accepted."`
	Fits     bool           `json:"fits" doc:"Some offering or node can hold one member."`
	Why      string         `json:"why,omitempty" doc:"One sentence: where a member fits, or what the largest offering is short of."`
	Plan     *JobPlan       `json:"plan,omitempty" doc:"What a submission would do now, if requested."`
}

// JobPlan is what a submission would do now, were nobody ahead of it in the queue.
type JobPlan struct {
	Refused   string     `json:"refused,omitempty" doc:"Why a submission would be rejected now; the rest is then empty."`
	Version   uint64     `json:"version,omitempty" doc:"The version that the job would be at."`
	Unchanged bool       `json:"unchanged,omitempty" doc:"The job has this specification already: nothing would change."`
	Change    *JobChange `json:"change,omitempty" doc:"What would happen to the existing job of this name."`

	Paused  string        `json:"paused,omitempty" doc:"Why nothing is placed at all now; the rest shows what happens afterwards."`
	Nodes   []PlannedNode `json:"nodes" doc:"Where members would go, in the order in which nodes are chosen."`
	Placed  int           `json:"placed"`
	Waiting int           `json:"waiting" doc:"How many members would not fit now."`
	GiveWay []string      `json:"give_way,omitempty" doc:"Allocations of lower priority that would be stopped for them."`
	Why     string        `json:"why,omitempty" doc:"What the waiting members would wait for: a limit, or what blocks a member on each node once the others are placed."`

	Considered *Considered  `json:"considered,omitempty" doc:"Why a member fits or does not fit each node now."`
	Ranked     []RankedNode `json:"ranked" doc:"The best node of each class that has capacity, at most ten, in order of preference."`
	Evictions  []Eviction   `json:"evictions,omitempty" doc:"Allocations that would be preempted, by node, and why these; at most a hundred."`
	More       bool         `json:"more,omitempty" doc:"Not all members were considered: others may be placed as well."`
	Text       []string     `json:"text" doc:"The nodes considered, as text."`
}

// JobChange is what a submission would do to a job that is there.
type JobChange struct {
	From    uint64        `json:"from" doc:"Its current version."`
	Members int           `json:"members,omitempty" doc:"Of a service or system job: how many members are outdated. They are replaced, a few at a time."`
	AtOnce  int           `json:"at_once,omitempty" doc:"How many of them at a time: update.max_parallel."`
	Stopped int           `json:"stopped" doc:"How many allocations would be stopped at once."`
	Stops   []PlannedStop `json:"stops,omitempty" doc:"These allocations, by member; at most 10,000."`
}

// PlannedStop is an allocation that would be told to stop.
type PlannedStop struct {
	Allocation string `json:"allocation"`
	Member     int    `json:"member"`
	Why        string `json:"why"`
}

// PlannedNode is a node that members would go to.
type PlannedNode struct {
	Node    string      `json:"node"`
	Members int         `json:"members"`
	Terms   string      `json:"terms" doc:"The terms of the ranking, in their order."`
	Score   []ScoreTerm `json:"score" doc:"The terms one by one; the first that differs decides."`
}

// JobStop is the body of POST /v1/jobs/{namespace}/{name}/stop.
type JobStop struct {
	Reason string `json:"reason,omitempty" maxLength:"200"`
}

// MaxRetryMembers is how many members a retry may name.
const MaxRetryMembers = 10_000

// JobRetry is the body of POST /v1/jobs/{namespace}/{name}/retry.
type JobRetry struct {
	Members []int `json:"members,omitempty" maxItems:"10000" doc:"Only these members, by index. Each must have failed or been stopped. Default: all that failed, and all that did not run because the job failed."`
	All     bool  `json:"all,omitempty" doc:"Also members that were stopped by a user. Not together with members."`
}

// JobRetried is the answer to a retry.
type JobRetried struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	Version   uint64 `json:"version" doc:"The job's version, which a retry does not change."`
	Index     uint64 `json:"index" doc:"Log index of the retry: events after it tell what becomes of it."`
	Retried   int    `json:"retried" doc:"How many members wait again."`
	Unchanged bool   `json:"unchanged,omitempty" doc:"The request was repeated, and nothing was done again."`
}

// JobCounts tells the members of a job by status. They add up to the count.
type JobCounts struct {
	Waiting   int `json:"waiting"`
	Placed    int `json:"placed" doc:"Placed or starting."`
	Running   int `json:"running"`
	Succeeded int `json:"succeeded"`
	Failed    int `json:"failed"`
	Stopped   int `json:"stopped"`
}

// Job is a job as the API shows it.
type Job struct {
	Namespace string     `json:"namespace"`
	Name      string     `json:"name"`
	UID       string     `json:"uid"`
	Version   uint64     `json:"version"`
	Type      string     `json:"type"`
	Priority  int        `json:"priority"`
	Count     int        `json:"count"`
	Stage     string     `json:"stage" enum:"live,stopping,ended"`
	Status    string     `json:"status" enum:"waiting,running,stopping,succeeded,failed,stopped" doc:"Stage, outcome and counts in one word. A live job is running if a member runs, or if some have ended and more are placed."`
	Outcome   string     `json:"outcome,omitempty" enum:"succeeded,failed,stopped"`
	Reason    string     `json:"reason,omitempty" doc:"Why it ended, or why it waits."`
	Waits     string     `json:"waits,omitempty" doc:"Why members wait, what is done about it, and why members whose command has ended are still running; in single-job answers, and of waiting jobs in lists with waits=true."`
	Command   []string   `json:"command,omitempty" doc:"The beginning of its command, about 200 bytes; in lists."`
	Counts    JobCounts  `json:"counts"`
	Submitted time.Time  `json:"submitted"`
	Ended     *time.Time `json:"ended,omitempty"`
	Spec      *JobSpec   `json:"spec,omitempty" doc:"With defaults filled in; in single-job answers."`
	Rollout   *Rollout   `json:"rollout,omitempty" doc:"Of a service or system job: its rollout; in single-job answers."`
}

// JobList is a page of jobs.
type JobList struct {
	Jobs  []Job  `json:"jobs"`
	Next  string `json:"next,omitempty" doc:"Pass it as after= for the next page; empty on the last page."`
	More  int    `json:"more,omitempty" doc:"How many more jobs follow this page; with sort=newest only."`
	Index uint64 `json:"index" doc:"Log index of this view."`
}

// JobStatuses are all that JobStatus may return.
func JobStatuses() []string {
	return []string{"waiting", "running", "stopping", "succeeded", "failed", "stopped"}
}

// JobStatus is how a job stands, in one word: its outcome if it has ended, and of a live job
// whether any member runs.
func JobStatus(j *Job) string {
	if j.Stage == "ended" && j.Outcome != "" {
		return j.Outcome
	}
	if j.Stage != "live" {
		return j.Stage
	}
	// Between two short members of an array none may run for a moment, and the job still does.
	if j.Counts.Running > 0 || j.Counts.Placed > 0 && j.Counts.Succeeded+j.Counts.Failed > 0 {
		return "running"
	}
	return "waiting"
}

// Alloc is an allocation as the API shows it.
type Alloc struct {
	ID        string `json:"id"`
	Namespace string `json:"namespace"`
	Job       string `json:"job"`
	JobUID    string `json:"job_uid"`
	Version   uint64 `json:"version"`
	Index     int    `json:"index"`
	Attempt   int    `json:"attempt"`
	Node      string `json:"node"`
	Desired   string `json:"desired" enum:"run,stop"`
	Status    string `json:"status" enum:"placed,starting,running,ended"`
	// Unreachable is read off the node.
	Unreachable bool `json:"unreachable,omitempty" doc:"Contact with its node is lost: the status is the last known one. Not in events."`
	// NodeProblem is read off the node.
	NodeProblem string      `json:"node_problem,omitempty" doc:"Of a live allocation: why its node is out of contact or is being destroyed. Not in events."`
	Outcome     string      `json:"outcome,omitempty" enum:"succeeded,failed,stopped,lost"`
	ExitCode    *int        `json:"exit_code,omitempty"`
	Signal      string      `json:"signal,omitempty" doc:"Signal that ended its command, as SIGTERM."`
	StopCause   string      `json:"stop_cause,omitempty" doc:"Why it was stopped, or is being stopped."`
	Failure     *Failure    `json:"failure,omitempty"`
	Detail      string      `json:"detail,omitempty" doc:"The step of its start, for example the pull of its image."`
	Image       string      `json:"image,omitempty" doc:"Digest of the image that it was started from."`
	Cores       []int       `json:"cores,omitempty" doc:"Whole cores of its node that it uses."`
	Devices     []string    `json:"devices,omitempty" doc:"Devices of its node that it uses, as \"gpu 0\"."`
	Ports       []int       `json:"ports,omitempty" doc:"Ports of its node that it uses."`
	Placed      time.Time   `json:"placed"`
	Started     *time.Time  `json:"started,omitempty"`
	Ended       *time.Time  `json:"ended,omitempty"`
	Output      OutputState `json:"output"`
}

// Failure says why an allocation did not succeed.
type Failure struct {
	Class   string `json:"class" enum:"user,node,outside"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// OutputState tells what is kept of an allocation's output.
type OutputState struct {
	State       string `json:"state" enum:"open,complete,incomplete,pruned" doc:"open: more may follow. incomplete: some was lost; see why."`
	Why         string `json:"why,omitempty"`
	StdoutBytes int64  `json:"stdout_bytes"`
	StderrBytes int64  `json:"stderr_bytes"`
	Dropped     int64  `json:"dropped_bytes,omitempty" doc:"Oldest output dropped because of output_limit."`
	Files       int    `json:"files,omitempty" doc:"Declared outputs stored."`
}

// AllocList is a page of allocations.
type AllocList struct {
	Allocs []Alloc `json:"allocs"`
	Next   string  `json:"next,omitempty"`
	Index  uint64  `json:"index"`
}

// Member is one of a job's count.
type Member struct {
	Index   int        `json:"index"`
	Status  string     `json:"status" enum:"waiting,placed,succeeded,failed,stopped"`
	Attempt int        `json:"attempt" doc:"Attempts so far."`
	Alloc   string     `json:"alloc,omitempty" doc:"The newest allocation."`
	RetryAt *time.Time `json:"retry_at,omitempty"`
	Reason  string     `json:"reason,omitempty"`
}

// MemberList is a page of members.
type MemberList struct {
	Members []Member `json:"members"`
	Next    string   `json:"next,omitempty"`
	Index   uint64   `json:"index"`
}

// OutputFile is one declared output that was stored.
type OutputFile struct {
	Path string `json:"path"`
	Size int64  `json:"size" doc:"Size of its tar archive in bytes."`
}

// OutputFileList lists the declared outputs of an allocation.
type OutputFileList struct {
	Files []OutputFile `json:"files"`
}
