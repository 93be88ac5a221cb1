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
	Text []string `json:"text" doc:"The same in sentences."`

	Parked      string     `json:"parked,omitempty" doc:"Why the scheduler has parked it."`
	ParkedUntil *time.Time `json:"parked_until,omitempty"`
	NextAttempt *time.Time `json:"next_attempt,omitempty" doc:"When the first member in back-off is retried."`
	LastFailure string     `json:"last_failure,omitempty" doc:"Why the first member that waits for another attempt failed."`

	Limit string `json:"limit,omitempty" doc:"The limit, of its namespace or of all namespaces together, that blocks some of its waiting members."`

	Ahead *QueueAhead `json:"ahead,omitempty" doc:"What is before it in the queue."`
	// Member is the one that was asked for; nil: the job.
	Member *int `json:"member,omitempty" doc:"The requested member."`

	Considered *Considered     `json:"considered,omitempty" doc:"Why a member fits or does not fit each node now."`
	Ranked     []RankedNode    `json:"ranked,omitempty" doc:"The best node of each class that has capacity, at most ten, in order of preference."`
	Nodes      []PlannedNode   `json:"nodes,omitempty" doc:"Where waiting members would be placed now, ignoring queue order; at most a hundred."`
	Evictions  []Eviction      `json:"evictions,omitempty" doc:"Allocations that would be preempted for members that fit nowhere; at most a hundred."`
	Present    *PresentNode    `json:"present,omitempty" doc:"The current node of the requested member, if it has a live allocation. Everything else is then explained as if it were unplaced."`
	Offerings  []OfferingSight `json:"offerings" doc:"What could be launched for it, and what prevents it."`
	Coming     []NodeComing    `json:"coming" doc:"Launching nodes that members would fit."`
	Fleet      []Wait          `json:"fleet" doc:"Why no more nodes are launched for it."`
	Blocks     []Block         `json:"blocks" doc:"Refusals of the cloud, and until when they count."`
	Rates      []CallRate      `json:"call_rates,omitempty" doc:"Call rates of providers for which creating its launching nodes waits."`

	Expected *time.Time `json:"expected,omitempty" doc:"Estimated start of a member: when the first launching node serves, or when capacity becomes free, by earlier boots and runs; whichever is sooner."`
	Price    *float64   `json:"price,omitempty" doc:"Per hour, of that node; else of the cheapest available offering that members fit."`
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
	Avoided  int             `json:"avoided" doc:"Nodes on which the member failed before."`
	Closed   []ConsiderCount `json:"closed" doc:"Nodes that take no new work, because of stage, health or intent."`
	Filtered []ConsiderCount `json:"filtered" doc:"Nodes that do not meet the pool or a constraint."`
	Short    []Shortage      `json:"short" doc:"Nodes that are short of a resource."`
	Text     string          `json:"text"`
	// Classes are the same by class of nodes that are equal to the job but for what is free on them.
	Classes     []NodeClass `json:"classes" doc:"The same by class of equal nodes, the largest first; at most a hundred."`
	MoreClasses int         `json:"more_classes,omitempty" doc:"How many classes are not listed."`
	MoreNodes   int         `json:"more_nodes,omitempty" doc:"How many nodes are in them."`
}

// NodeClass is nodes that are alike to a job but for what is free on them.
type NodeClass struct {
	Class    string          `json:"class" doc:"Description of the class: pool/offering, zone, market unless on-demand, size, and those attributes that the job uses."`
	Nodes    int             `json:"nodes"`
	Fitting  int             `json:"fitting" doc:"Nodes that fit a member now."`
	Avoided  int             `json:"avoided" doc:"Nodes on which the member failed before."`
	Closed   []ConsiderCount `json:"closed" doc:"Nodes that take no new work, because of stage, health or intent."`
	Filtered []ConsiderCount `json:"filtered" doc:"Nodes that do not meet the pool or a constraint."`
	Short    []Shortage      `json:"short" doc:"Nodes that are short of a resource."`
}

// RankedNode is the best node of its class.
type RankedNode struct {
	Node  string      `json:"node"`
	Class string      `json:"class"`
	Terms string      `json:"terms" doc:"The terms of the ranking, in their order."`
	Score []ScoreTerm `json:"score" doc:"The terms one by one; the first that differs decides."`
}

// ScoreTerm is one of the things by which a node is taken.
type ScoreTerm struct {
	Name  string      `json:"name" doc:"preference, devices, locality, tightness, emptiness (in a pool that spreads), home (of a system job); of an eviction allocations, priority, surplus."`
	Value float64     `json:"value"`
	Text  string      `json:"text"`
	Of    []ScorePart `json:"of,omitempty" doc:"Its summands: of a preference each affinity that is met, and each spread."`
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
	Terms  string      `json:"terms" doc:"Why these allocations: the terms of the least damage."`
	Score  []ScoreTerm `json:"score"`
}

// PresentNode is the node that a member is on, as it would be looked at were the member not there.
type PresentNode struct {
	Node     string      `json:"node"`
	Obstacle string      `json:"obstacle,omitempty" doc:"What blocks the member on it now."`
	Terms    string      `json:"terms,omitempty" doc:"The terms of the ranking, in their order."`
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
	Asked    float64 `json:"asked" doc:"Cores, bytes, or devices. 0 for a port."`
	Most     float64 `json:"most" doc:"The largest free amount of any node."`
}

// OfferingSight is an offering as one job sees it.
type OfferingSight struct {
	Pool     string  `json:"pool"`
	Offering string  `json:"offering"`
	Zone     string  `json:"zone,omitempty"`
	Market   string  `json:"market"`
	Price    float64 `json:"price"`
	Fits     bool    `json:"fits" doc:"An empty node of it can hold a member."`
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
	Trouble  string     `json:"trouble,omitempty" doc:"What delays its service."`
	Expected *time.Time `json:"expected,omitempty"`
}

// Dial is one of a node's three.
type Dial struct {
	Value  string     `json:"value"`
	Who    string     `json:"who" doc:"What set it: fleet, link, or an operator."`
	Since  *time.Time `json:"since,omitempty"`
	Reason string     `json:"reason,omitempty"`
}

// NodeExplanation is why a node is as it is, and what becomes of it.
type NodeExplanation struct {
	Node        string   `json:"node"`
	Text        []string `json:"text" doc:"The same in sentences."`
	Stage       Dial     `json:"stage"`
	Health      Dial     `json:"health"`
	Intent      Dial     `json:"intent"`
	Schedulable bool     `json:"schedulable"`
	Closed      string   `json:"closed,omitempty" doc:"Why it gets no new work."`

	Allocs  int        `json:"allocs"`
	Runs    []NodeRuns `json:"runs" doc:"Live allocations by job, those with the most first."`
	Outputs int        `json:"outputs" doc:"Ended allocations there whose output is not stored yet."`

	WaitsFor string     `json:"waits_for,omitempty" doc:"What the next transition of its stage waits for."`
	EndsAt   *time.Time `json:"ends_at,omitempty" doc:"When it will be destroyed if nothing changes."`
	Ends     string     `json:"ends" doc:"When and why it will be destroyed, or why not."`
	Index    uint64     `json:"index"`
}

// NodeRuns is how many members of a job run on a node.
type NodeRuns struct {
	Namespace string `json:"namespace"`
	Job       string `json:"job"`
	Allocs    int    `json:"allocs"`
}
