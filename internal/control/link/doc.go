// Package link keeps the server in touch with the agent of each node. Desired allocations go down
// to the agent. Its reports come up and become facts. Output and declared outputs go to the blob
// store, and inputs go to the node.
//
// The server sends the desired allocations in sets. A new connection gets the whole set; later sets
// name only what changed. An agent draws no conclusion from the absence of an allocation, so a part
// is as safe as the whole, and the whole is sent again whenever that could matter. Each set carries
// the term under which Run began; an agent refuses a set with an older term.
//
// The goroutines: one reads the change feed. For each node, one dials, one judges the node's
// health, and three run while the node is in contact (they read reports, propose facts and send
// sets). Shippers store output, a few for each node.
//
// The locks: Link.mu guards the map of nodes, nodeLink.mu the contact of one node, session.mu what
// one contact has shown, ship.mu the progress of one allocation's output. A ship.mu may be taken
// while a nodeLink.mu is held, never the reverse. No lock is held during a call to a node, to the
// blob store or to the log.
//
// Package link must never decide where or whether something runs, declare an instance gone, or stop
// what the log does not stop. The server runs it for as long as it leads.
package link
