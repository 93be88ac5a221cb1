// Package link keeps the server in touch with the agent of each node: desired
// allocations go down, what is true comes up as facts, output and declared
// outputs go to the blob store, inputs to the node.
//
// A set names what changed, and everything on each new connection: absence
// means nothing to an agent, so a part is as good as the whole, and the whole is sent again whenever
// it could matter. Each set is fenced with the term under which Run began.
//
// It must never decide where or whether something runs, declare an instance
// gone, or stop what the log does not stop. The server runs it for as long as it leads.
package link
