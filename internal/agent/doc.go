// Package agent is the node's side of Muster: it turns desired allocations
// into sandboxes, keeps their output and results until the server has them, and
// reports what is true.
//
// It must never decide where or whether something runs, know a cloud, or
// stop a sandbox because the server is silent or a set lacks it. cmd/muster-node
// runs it; the server's link talks to it through internal/wire/agent.
package agent
