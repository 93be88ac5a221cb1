package api

import "time"

// Resources is an amount of what nodes have and members need.
type Resources struct {
	CPU    float64 `json:"cpu" doc:"Cores."`
	Memory int64   `json:"memory" doc:"Bytes."`
	Disk   int64   `json:"disk" doc:"Bytes."`
}

// Node is a node as the API shows it.
type Node struct {
	ID           string            `json:"id"`
	Pool         string            `json:"pool"`
	Provider     string            `json:"provider"`
	Offering     string            `json:"offering"`
	Zone         string            `json:"zone,omitempty"`
	Market       string            `json:"market"`
	Price        float64           `json:"price" doc:"Per hour, in the operator's currency."`
	Instance     string            `json:"instance,omitempty"`
	Stage        string            `json:"stage" enum:"launching,booting,adopted,serving,draining,terminating,gone"`
	Health       string            `json:"health" enum:"good,unready,lost,flaky,broken"`
	Intent       string            `json:"intent" enum:"run,hold,drain"`
	Schedulable  bool              `json:"schedulable"`
	Reason       string            `json:"reason,omitempty" doc:"Why the stage or health is what it is."`
	Capacity     Resources         `json:"capacity"`
	Used         Resources         `json:"used"`
	Allocs       int               `json:"allocs" doc:"Live allocations."`
	AgentVersion string            `json:"agent_version,omitempty"`
	Attributes   map[string]string `json:"attributes,omitempty"`
	Problems     []string          `json:"problems,omitempty" doc:"What the node cannot do, as its agent says; in single-node answers."`
	Usage        *NodeUsage        `json:"usage,omitempty" doc:"What its agent last reported; in single-node answers."`
	Launched     time.Time         `json:"launched"`
	Joined       *time.Time        `json:"joined,omitempty"`
	Gone         *time.Time        `json:"gone,omitempty"`
}

// NodeUsage is what an agent last said of its node.
type NodeUsage struct {
	CPUSeconds float64    `json:"cpu_seconds" doc:"Processor time of what runs, since each began."`
	Memory     int64      `json:"memory" doc:"Bytes that what runs uses now."`
	FreeDisk   int64      `json:"free_disk" doc:"Bytes free where the agent keeps its sandboxes."`
	Heard      *time.Time `json:"heard,omitempty" doc:"When something last came from the agent."`
}

// NodeList is a page of nodes.
type NodeList struct {
	Nodes []Node `json:"nodes"`
	Next  string `json:"next,omitempty"`
	Index uint64 `json:"index"`
}
