package agent

import (
	"context"
	"net/http"
	"time"

	"github.com/musterhq/muster"
)

// Probe asks a node to prove that it is ready: by the agent's own checks, then by the operator's command.
type Probe struct {
	// Command of the operator's; empty: none. TimeoutMillis ends it.
	Command       []string `json:"command,omitempty"`
	TimeoutMillis int64    `json:"timeout_ms,omitempty"`
	// Now is the server's clock: the node's is to be near.
	Now muster.Time `json:"now"`
}

// ProbeAnswer is what came of it.
type ProbeAnswer struct {
	Ready bool `json:"ready"`
	// Why it is not, in words.
	Why string `json:"why,omitempty"`
	// AgainMillis is after what time it wants to be asked again; 0: as the server likes.
	AgainMillis int64 `json:"again_ms,omitempty"`
	// Broken: it never will be.
	Broken bool `json:"broken,omitempty"`
}

// Condition is what an agent's checks say of its node without being asked.
type Condition struct {
	// Unready is why nothing can be started now, in words; Broken why the node is to be given up. Empty: all is well.
	Unready string `json:"unready,omitempty"`
	Broken  string `json:"broken,omitempty"`
	// Notice is what the cloud says that it will do with the machine; zero: nothing.
	Notice Notice `json:"notice,omitzero"`
}

// Notice is what a cloud's metadata service says that it will do with the machine.
type Notice struct {
	// Kind is one of those below; a server ignores others. Empty: no notice.
	Kind string `json:"kind"`
	// At is when it happens; for one at risk, when the cloud said so.
	At muster.Time `json:"at"`
}

// Kinds of notices: the cloud takes the machine, restarts or moves it, or may take it.
const (
	NoticeTaken       = "taken"
	NoticeMaintenance = "maintenance"
	NoticeAtRisk      = "at-risk"
)

// ChecksTimeout bounds an agent's own checks.
const ChecksTimeout = 20 * time.Second

// Probe asks a node whether it is ready. An agent of before there were probes is ready. The call ends at the latest when the time for
// the agent's checks and for the command is over, and some more.
func (c *Client) Probe(ctx context.Context, p Probe) (ProbeAnswer, error) {
	var a ProbeAnswer
	limit := ChecksTimeout + time.Duration(p.TimeoutMillis)*time.Millisecond + helloTimeout
	err := c.exchange(ctx, limit, http.MethodPost, "/v1/probe", p, &a)
	if muster.IsKind(err, muster.FaultNotFound) {
		return ProbeAnswer{Ready: true}, nil
	}
	return a, err
}
