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
	Stage        string            `json:"stage" enum:"launching,booting,adopted,serving,draining,stopped,starting,terminating,gone"`
	Health       string            `json:"health" enum:"good,unready,lost,flaky,broken"`
	Intent       string            `json:"intent" enum:"run,hold,drain"`
	Schedulable  bool              `json:"schedulable"`
	Reason       string            `json:"reason,omitempty" doc:"Reason of the stage or health."`
	Capacity     Resources         `json:"capacity"`
	Used         Resources         `json:"used"`
	Devices      []string          `json:"devices,omitempty" doc:"As \"4 gpu A100\"; they are numbered from 0 over all devices of the node."`
	Taken        string            `json:"taken,omitempty" doc:"Whole cores and ports in use, and the thousandths in use of each device."`
	Allocs       int               `json:"allocs" doc:"Live allocations."`
	Warm         []string          `json:"warm,omitempty" doc:"Affinity keys of its recent work and images, the newest first; in single-node answers."`
	WarmAt       *time.Time        `json:"warm_at,omitempty" doc:"When it last got work with one."`
	Sidelined    *time.Time        `json:"sidelined_until,omitempty" doc:"It is flaky and quarantined until then."`
	Failures     []NodeFailure     `json:"failures,omitempty" doc:"Node failures within the last ten minutes; in single-node answers. Three quarantine it."`
	AgentVersion string            `json:"agent_version,omitempty"`
	Attributes   map[string]string `json:"attributes,omitempty"`
	Problems     []string          `json:"problems,omitempty" doc:"What the node cannot do, as reported by its agent; in single-node answers."`
	Usage        *NodeUsage        `json:"usage,omitempty" doc:"What its agent last reported; in single-node answers."`
	StageSince   *time.Time        `json:"stage_since,omitempty"`
	IntentReason string            `json:"intent_reason,omitempty" doc:"Reason of the intent, as given by the operator who set it."`
	IntentWho    string            `json:"intent_who,omitempty" doc:"The operator who set the intent."`
	IntentSince  *time.Time        `json:"intent_since,omitempty"`
	IntentUntil  *time.Time        `json:"intent_until,omitempty" doc:"Of a hold: when it ends. Of a drain: its deadline, when remaining work is stopped."`
	Lease        Duration          `json:"lease,omitempty" doc:"It shuts itself down after this time without contact to a server; 0: never, as while it is held. In single-node answers."`
	BootError    string            `json:"boot_error,omitempty" doc:"The last error before it came into service: what starting its agent printed or answered."`
	Trouble      string            `json:"provider_error,omitempty" doc:"The provider's last error for a create, destroy or tag of the instance, until one succeeds."`
	History      []NodeEvent       `json:"history,omitempty" doc:"Its history, the oldest entry first; in single-node answers."`
	HistoryLost  int               `json:"history_lost,omitempty" doc:"How many entries of the history were dropped."`
	Launched     time.Time         `json:"launched"`
	Joined       *time.Time        `json:"joined,omitempty"`
	Gone         *time.Time        `json:"gone,omitempty"`
}

// NodeFailure is one failure of a node's own making.
type NodeFailure struct {
	Time time.Time `json:"time"`
	What string    `json:"what"`
}

// NodeUsage is what an agent last said of its node.
type NodeUsage struct {
	CPUSeconds float64    `json:"cpu_seconds" doc:"CPU time of running work, since each start."`
	Memory     int64      `json:"memory" doc:"Memory that running work uses, in bytes."`
	FreeDisk   int64      `json:"free_disk" doc:"Bytes free where the agent keeps its sandboxes."`
	Heard      *time.Time `json:"heard,omitempty" doc:"Time of the last message from the agent."`
}

// NodeEvent is one entry of a node's history.
type NodeEvent struct {
	Time   time.Time `json:"time"`
	Type   string    `json:"type" doc:"As the types of events: node.serving, node.lost, node.intent-hold."`
	Reason string    `json:"reason,omitempty"`
	Who    string    `json:"who,omitempty" doc:"The operator who caused it, if any."`
}

// NodeHold is the body of POST /v1/nodes/{id}/hold.
type NodeHold struct {
	Reason string   `json:"reason,omitempty" maxLength:"200" doc:"Why, recorded in the history."`
	For    Duration `json:"for,omitempty" zero:"until it is set to run" doc:"How long, for example 2h. Default: until its intent is set to run."`
	Who    string   `json:"who,omitempty" doc:"The person or program that requested it, recorded in the history."`
}

// NodeDrain is the body of POST /v1/nodes/{id}/drain.
type NodeDrain struct {
	Reason   string   `json:"reason,omitempty" maxLength:"200" doc:"Why, recorded in the history."`
	Deadline Duration `json:"deadline,omitempty" zero:"until everything has ended by itself" doc:"Work that still runs after this time, for example 10m, is stopped with its kill grace and placed elsewhere; the attempt is not counted. Default: no deadline."`
	Who      string   `json:"who,omitempty" doc:"The person or program that requested it, recorded in the history."`
}

// NodeOrder is the body of POST /v1/nodes/{id}/run.
type NodeOrder struct {
	Reason string `json:"reason,omitempty" maxLength:"200" doc:"Why, recorded in the history."`
	Who    string `json:"who,omitempty" doc:"The person or program that requested it, recorded in the history."`
}

// NodeDestroy is the body of POST /v1/nodes/{id}/destroy.
type NodeDestroy struct {
	Now    bool   `json:"now,omitempty" doc:"Do not wait for running work: it is lost, and placed again elsewhere."`
	Reason string `json:"reason,omitempty" maxLength:"200" doc:"Why, recorded in the history."`
	Who    string `json:"who,omitempty" doc:"The person or program that requested it, recorded in the history."`
}

// NodeList is a page of nodes.
type NodeList struct {
	Nodes []Node `json:"nodes"`
	Next  string `json:"next,omitempty"`
	Index uint64 `json:"index"`
}
