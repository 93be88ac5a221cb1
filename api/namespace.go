package api

import "time"

// Namespace is a namespace as the API shows it: what it may have, has and wants.
type Namespace struct {
	Name string `json:"name" doc:"* stands for all of them together."`
	// Class shares Weight with whoever else is in it.
	Class    string          `json:"class,omitempty" doc:"What shares the weight: a class of the configuration's shares, or the namespace alone."`
	Weight   int             `json:"weight,omitempty" doc:"Of its class: when capacity is short, it is shared in proportion to weights."`
	Share    float64         `json:"share,omitempty" doc:"The part of the capacity that its class is entitled to among the classes with usage or demand now; 0 to 1."`
	Jobs     int             `json:"jobs" doc:"Jobs that have not ended."`
	Waiting  int             `json:"waiting" doc:"Members that want an allocation."`
	Allocs   int             `json:"allocations" doc:"Allocations that have not ended."`
	Used     Resources       `json:"used" doc:"Their reserved resources."`
	Limits   NamespaceLimits `json:"limits"`
	LimitSet *time.Time      `json:"limit_set,omitempty" doc:"When its limits were set."`
	LimitWho string          `json:"limit_who,omitempty"`
	LimitWhy string          `json:"limit_why,omitempty"`
}

// NamespaceLimits is the most that a namespace may have at once; 0 means no limit.
type NamespaceLimits struct {
	Jobs   int     `json:"jobs,omitempty" minimum:"0" maximum:"1000000000" doc:"Most live jobs. One more is rejected with 429."`
	Allocs int     `json:"allocations,omitempty" minimum:"0" maximum:"1000000000" doc:"Most allocations at once. Further members wait."`
	CPU    float64 `json:"cpu,omitempty" minimum:"0" maximum:"1000000000" unit:"cores" doc:"Most cores of all its allocations. A job with a member that needs more is rejected with 429; further members wait."`
	Memory Size    `json:"memory,omitempty" doc:"Most memory of all its allocations, for example 64GiB; as for cpu."`
	// MaxPriority is the highest priority of its jobs. Default 70.
	MaxPriority *int `json:"max_priority,omitempty" minimum:"0" maximum:"100" doc:"The highest priority that its jobs may have. Default: 70."`
}

// NamespaceList is the answer of GET /v1/namespaces.
type NamespaceList struct {
	Namespaces []Namespace `json:"namespaces"`
	Index      uint64      `json:"index"`
}

// NamespaceSet is the body of POST /v1/namespaces/{name}/limits.
type NamespaceSet struct {
	Limits NamespaceLimits `json:"limits" doc:"The complete set: a limit that is left out is removed."`
	Reason string          `json:"reason,omitempty" maxLength:"200"`
	Who    string          `json:"who,omitempty" maxLength:"100"`
}

// ShareSpec gives the namespaces whose name matches a weight.
type ShareSpec struct {
	Match  string `json:"match" doc:"A namespace, or a pattern: * stands for any characters, ? for one, [a-c] for one of a set."`
	Class  string `json:"class,omitempty" doc:"Namespaces of one class share its weight. Default: each namespace that matches has the weight for itself."`
	Weight int    `json:"weight" minimum:"0" maximum:"1000000" doc:"When capacity is short, classes share it in proportion to their weights. 0: only what no other class wants."`
}
