package api

import "time"

// JobExplanation is what a job waits for, from the queue to the cloud.
type JobExplanation struct {
	Namespace string    `json:"namespace"`
	Job       string    `json:"job"`
	Version   uint64    `json:"version"`
	Stage     string    `json:"stage" enum:"live,stopping,ended"`
	Priority  int       `json:"priority"`
	Counts    JobCounts `json:"counts"`
	// Text is all of it in sentences, for people.
	Text []string `json:"text" doc:"All of it in sentences."`

	Parked      string     `json:"parked,omitempty" doc:"Why the scheduler has given it up for a time."`
	ParkedUntil *time.Time `json:"parked_until,omitempty"`
	NextAttempt *time.Time `json:"next_attempt,omitempty" doc:"When the first member in its back-off is tried again."`
	LastFailure string     `json:"last_failure,omitempty" doc:"Why the first member that waits for another attempt failed."`

	Limit string `json:"limit,omitempty" doc:"The limit of its namespace, or of all of them, that not all members that wait may pass now."`

	Ahead *QueueAhead `json:"ahead,omitempty" doc:"What waits before it."`
	// Member is the one that was asked for; nil: the job.
	Member *int `json:"member,omitempty" doc:"The member that was asked for."`

	Considered *Considered     `json:"considered,omitempty" doc:"What stands between a member and each node now."`
	Ranked     []RankedNode    `json:"ranked,omitempty" doc:"The best node of each class that has capacity, at most ten, in order of preference."`
	Nodes      []PlannedNode   `json:"nodes,omitempty" doc:"Where members that wait would go now, were nobody ahead of the job; at most a hundred."`
	Evictions  []Eviction      `json:"evictions,omitempty" doc:"Allocations that would be preempted for members that fit nowhere; at most a hundred."`
	Present    *PresentNode    `json:"present,omitempty" doc:"The node that the member is on, if one that has a live allocation was asked for. All else is then told as if it had none."`
	Offerings  []OfferingSight `json:"offerings" doc:"What could be launched for it, and what prevents it."`
	Coming     []NodeComing    `json:"coming" doc:"Nodes on their way that members would fit on."`
	Fleet      []Wait          `json:"fleet" doc:"Why the fleet launches nothing more for it, if it does not."`
	Blocks     []Block         `json:"blocks" doc:"What the cloud has answered, and for how long that is heeded."`

	Expected *time.Time `json:"expected,omitempty" doc:"When a member may start: when the first launching node serves, or when capacity becomes free, estimated by earlier boots and runs; whichever is sooner."`
	Price    *float64   `json:"price,omitempty" doc:"Per hour, of that node; else of the cheapest offering that can be had and that members fit."`
	Index    uint64     `json:"index"`
}

// QueueAhead counts what is served before a job: higher priorities, and earlier jobs of the same.
type QueueAhead struct {
	Jobs    int `json:"jobs"`
	Members int `json:"members"`
}

// Considered says what became of each node that was considered. Each is counted once, by the first thing in the way.
type Considered struct {
	Nodes    int             `json:"nodes"`
	Fitting  int             `json:"fitting" doc:"Nodes that fit a member now."`
	Avoided  int             `json:"avoided" doc:"Where the member failed before."`
	Closed   []ConsiderCount `json:"closed" doc:"Take no new work: by stage, health or intent."`
	Filtered []ConsiderCount `json:"filtered" doc:"Do not meet the pool or a constraint."`
	Short    []Shortage      `json:"short" doc:"Have not enough of a resource."`
	Text     string          `json:"text"`
	// Classes are the same by class of nodes that are equal to the job but for what is free on them.
	Classes     []NodeClass `json:"classes" doc:"The same by class of equal nodes, the largest first; at most a hundred."`
	MoreClasses int         `json:"more_classes,omitempty" doc:"How many classes are not listed."`
	MoreNodes   int         `json:"more_nodes,omitempty" doc:"How many nodes these have."`
}

// NodeClass is nodes that are alike to a job but for what is free on them.
type NodeClass struct {
	Class    string          `json:"class" doc:"What they are: pool/offering, zone, market unless on-demand, how large they are, and of their attributes those that the job asks for."`
	Nodes    int             `json:"nodes"`
	Fitting  int             `json:"fitting" doc:"Nodes that fit a member now."`
	Avoided  int             `json:"avoided" doc:"Where the member failed before."`
	Closed   []ConsiderCount `json:"closed" doc:"Take no new work: by stage, health or intent."`
	Filtered []ConsiderCount `json:"filtered" doc:"Do not meet the pool or a constraint."`
	Short    []Shortage      `json:"short" doc:"Have not enough of a resource."`
}

// RankedNode is the best node of its class.
type RankedNode struct {
	Node  string      `json:"node"`
	Class string      `json:"class"`
	Terms string      `json:"terms" doc:"By what the node is taken, in the order in which that counts."`
	Score []ScoreTerm `json:"score" doc:"The terms one by one: the first that differs decides."`
}

// ScoreTerm is one of the things by which a node is taken.
type ScoreTerm struct {
	Name  string      `json:"name" doc:"preference, devices, warmth, tightness, emptiness (in a pool that spreads), home (of a system job); of an eviction allocations, priority, surplus."`
	Value float64     `json:"value"`
	Text  string      `json:"text"`
	Of    []ScorePart `json:"of,omitempty" doc:"What it is the sum of: of a preference each affinity that is met, and each spread."`
}

// ScorePart is a part of a term.
type ScorePart struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Text  string  `json:"text"`
}

// Eviction is allocations of one node that would give way to a member of higher priority.
type Eviction struct {
	Node   string      `json:"node"`
	Allocs []string    `json:"allocs"`
	Terms  string      `json:"terms" doc:"Why it is these: the least harm."`
	Score  []ScoreTerm `json:"score"`
}

// PresentNode is the node that a member is on, as it would be looked at were the member not there.
type PresentNode struct {
	Node     string      `json:"node"`
	Obstacle string      `json:"obstacle,omitempty" doc:"What would keep the member from it now."`
	Terms    string      `json:"terms,omitempty" doc:"By what it would be taken, in the order in which that counts."`
	Score    []ScoreTerm `json:"score,omitempty"`
}

// ConsiderCount is how many nodes something is true of.
type ConsiderCount struct {
	What  string `json:"what"`
	Nodes int    `json:"nodes"`
}

// Shortage is a resource that nodes are short of.
type Shortage struct {
	Resource string  `json:"resource" doc:"cpu, memory, disk, devices as \"gpu A100\", or a port as \"port 80\"."`
	Nodes    int     `json:"nodes"`
	Asked    float64 `json:"asked" doc:"Cores, bytes, or devices. 0 of a port."`
	Most     float64 `json:"most" doc:"What the node with the most of it has free."`
}

// OfferingSight is an offering as one job sees it.
type OfferingSight struct {
	Pool     string  `json:"pool"`
	Offering string  `json:"offering"`
	Zone     string  `json:"zone,omitempty"`
	Market   string  `json:"market"`
	Price    float64 `json:"price"`
	Fits     bool    `json:"fits" doc:"An empty node of it holds a member."`
	Obstacle string  `json:"obstacle,omitempty" doc:"What prevents launching one for the job now."`
}

// NodeComing is a node on its way.
type NodeComing struct {
	Node     string     `json:"node"`
	Pool     string     `json:"pool"`
	Offering string     `json:"offering"`
	Stage    string     `json:"stage"`
	Since    time.Time  `json:"since"`
	Price    float64    `json:"price"`
	Reason   string     `json:"reason,omitempty" doc:"Why it was launched."`
	Trouble  string     `json:"trouble,omitempty" doc:"What keeps it from coming into service."`
	Expected *time.Time `json:"expected,omitempty"`
}

// Dial is one of a node's three.
type Dial struct {
	Value  string     `json:"value"`
	Who    string     `json:"who" doc:"Who turned it: fleet, link, or an operator."`
	Since  *time.Time `json:"since,omitempty"`
	Reason string     `json:"reason,omitempty"`
}

// NodeExplanation is why a node is as it is, and what becomes of it.
type NodeExplanation struct {
	Node        string   `json:"node"`
	Text        []string `json:"text" doc:"All of it in sentences."`
	Stage       Dial     `json:"stage"`
	Health      Dial     `json:"health"`
	Intent      Dial     `json:"intent"`
	Schedulable bool     `json:"schedulable"`
	Closed      string   `json:"closed,omitempty" doc:"What keeps new work from it."`

	Allocs  int        `json:"allocs"`
	Runs    []NodeRuns `json:"runs" doc:"Live allocations by job, those with the most first."`
	Outputs int        `json:"outputs" doc:"Allocations that have ended there and whose output is not stored yet."`

	WaitsFor string     `json:"waits_for,omitempty" doc:"What the next turn of its stage waits for."`
	EndsAt   *time.Time `json:"ends_at,omitempty" doc:"When it will be ended if nothing changes."`
	Ends     string     `json:"ends" doc:"When and why it will be ended, or why it will not."`
	Index    uint64     `json:"index"`
}

// NodeRuns is how many members of a job run on a node.
type NodeRuns struct {
	Namespace string `json:"namespace"`
	Job       string `json:"job"`
	Allocs    int    `json:"allocs"`
}
