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
	Devices      []string          `json:"devices,omitempty" doc:"As \"4 gpu A100\"; their places on the node go from 0 over all of them."`
	Taken        string            `json:"taken,omitempty" doc:"Which whole cores and ports of it are in use, and how many thousandths of each device."`
	Allocs       int               `json:"allocs" doc:"Live allocations."`
	Warm         []string          `json:"warm,omitempty" doc:"Affinity keys that it was last given work of or has images of, the newest first; in single-node answers."`
	WarmAt       *time.Time        `json:"warm_at,omitempty" doc:"When it was last given work with one."`
	Sidelined    *time.Time        `json:"sidelined_until,omitempty" doc:"It is flaky, and gets no work until then."`
	Failures     []NodeFailure     `json:"failures,omitempty" doc:"What it failed at by its own doing within the last ten minutes; in single-node answers. Three sideline it."`
	AgentVersion string            `json:"agent_version,omitempty"`
	Attributes   map[string]string `json:"attributes,omitempty"`
	Problems     []string          `json:"problems,omitempty" doc:"What the node cannot do, as its agent says; in single-node answers."`
	Usage        *NodeUsage        `json:"usage,omitempty" doc:"What its agent last reported; in single-node answers."`
	StageSince   *time.Time        `json:"stage_since,omitempty"`
	IntentReason string            `json:"intent_reason,omitempty" doc:"Why the intent is what it is, as who set it said."`
	IntentWho    string            `json:"intent_who,omitempty" doc:"Who set the intent."`
	IntentSince  *time.Time        `json:"intent_since,omitempty"`
	IntentUntil  *time.Time        `json:"intent_until,omitempty" doc:"Of a hold: when it goes back to run by itself. Of a drain: when what still runs there is stopped."`
	Lease        Duration          `json:"lease,omitempty" doc:"It ends itself after so long without contact to a server; 0: never, as while it is held. In single-node answers."`
	BootError    string            `json:"boot_error,omitempty" doc:"The last error before it came into service: what starting its agent printed or answered."`
	Trouble      string            `json:"provider_error,omitempty" doc:"What the provider last answered when it was asked to create, destroy or tag the instance, until that succeeds."`
	History      []NodeEvent       `json:"history,omitempty" doc:"What became of it, the oldest first; in single-node answers."`
	HistoryLost  int               `json:"history_lost,omitempty" doc:"How many entries of the history are not kept."`
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
	CPUSeconds float64    `json:"cpu_seconds" doc:"Processor time of what runs, since each began."`
	Memory     int64      `json:"memory" doc:"Bytes that what runs uses now."`
	FreeDisk   int64      `json:"free_disk" doc:"Bytes free where the agent keeps its sandboxes."`
	Heard      *time.Time `json:"heard,omitempty" doc:"When something last came from the agent."`
}

// NodeEvent is one entry of a node's history.
type NodeEvent struct {
	Time   time.Time `json:"time"`
	Type   string    `json:"type" doc:"As the types of events: node.serving, node.lost, node.intent-hold."`
	Reason string    `json:"reason,omitempty"`
	Who    string    `json:"who,omitempty" doc:"The operator whose doing it was, if it was one's."`
}

// NodeHold is the body of POST /v1/nodes/{id}/hold.
type NodeHold struct {
	Reason string   `json:"reason,omitempty" maxLength:"200" doc:"Why, recorded in the history."`
	For    Duration `json:"for,omitempty" zero:"until it is set to run" doc:"How long, as 2h. Default: until it is set to run."`
	Who    string   `json:"who,omitempty" doc:"Who requested it, recorded in the history."`
}

// NodeDrain is the body of POST /v1/nodes/{id}/drain.
type NodeDrain struct {
	Reason   string   `json:"reason,omitempty" maxLength:"200" doc:"Why, recorded in the history."`
	Deadline Duration `json:"deadline,omitempty" zero:"until everything has ended by itself" doc:"What still runs after so long, as 10m, is stopped with its kill grace, and runs elsewhere; it uses up no attempt. Default: until everything has ended by itself."`
	Who      string   `json:"who,omitempty" doc:"Who requested it, recorded in the history."`
}

// NodeOrder is the body of POST /v1/nodes/{id}/run.
type NodeOrder struct {
	Reason string `json:"reason,omitempty" maxLength:"200" doc:"Why, recorded in the history."`
	Who    string `json:"who,omitempty" doc:"Who requested it, recorded in the history."`
}

// NodeDestroy is the body of POST /v1/nodes/{id}/destroy.
type NodeDestroy struct {
	Now    bool   `json:"now,omitempty" doc:"Do not wait for what runs there: it is lost, and placed again elsewhere."`
	Reason string `json:"reason,omitempty" maxLength:"200" doc:"Why, recorded in the history."`
	Who    string `json:"who,omitempty" doc:"Who requested it, recorded in the history."`
}

// NodeList is a page of nodes.
type NodeList struct {
	Nodes []Node `json:"nodes"`
	Next  string `json:"next,omitempty"`
	Index uint64 `json:"index"`
}
