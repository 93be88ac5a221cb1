// Package journal is what an agent keeps in its directory: the layout, the lock, the record of the
// process, and the journal of each allocation, with reading, writing and deleting them.
//
// The agent writes it. Those who start an agent or take apart what one has left read it: providers
// whose instances are directories of a host (cloud/local), the host of an SSH node (agent/host),
// and agent/teardown.
//
// It must never decide what follows from what it reads, start or stop a sandbox, or know a runtime.
//
// # Layout
//
//	agent.lock         held by the one agent; whoever takes the directory apart holds it too
//	agent.json         Record of the process
//	agent.sock         HTTP, for its owner only (wire/agent names it)
//	fence.json         the highest fence: cluster, epoch, term; fence-tip.json follows its index (agent/fencing)
//	guard.json         until when exclusive allocations may run; lease.json the node's lease (agent/fencing)
//	broken             an operator's word that the node is broken
//	inputs/            inputs by digest, within a bound (agent/inputs)
//	images/            the cache of images (agent/images)
//	networks/          the networks of sandboxes (agent/network)
//	tmp/               temporary files of the agent; emptied when one starts
//	sandboxes/ID/      alloc.jsonl (spec, begun, ran, ready, end: a line each), work/, tmp/, outputs/N.tar, and the runtime's own
//
// Nothing here is synced to the disk. A killed agent leaves the page cache, and a power cut ends
// every sandbox as well; what the power cut tore is told from what is whole.
package journal
