// Package agent is the node's side of Muster: it turns desired allocations into sandboxes, keeps
// their output and results until the server has them, and reports what is true.
//
// It must never decide where or whether something runs, know a cloud, or stop a sandbox because the
// server is silent or a set lacks it. cmd/muster-node runs it; the server's link talks to it
// through internal/wire/agent.
//
// # Parts
//
// Agent keeps the set of allocations and the server's side: which set is obeyed, what is reported,
// HTTP. Each allocation takes itself from step to step. node is what the machine offers to all of
// them: runtimes, images, inputs, networks. reporter knows who reads reports. Whoever holds Agent's
// mutex may take an allocation's, and whoever holds that may take the reporter's, or that of a leaf:
// node, crew, trash and package fencing call nothing under theirs.
//
// # An allocation on its node
//
//	a set brings it ─ journal ─ image ─ inputs ─ guard ─ begin ─ watch ─ outputs ─ report ─ forgotten
//	                     └────────┴───────┴────────┴──── stop: ended without having run
//
// One goroutine takes it from the first to the last (live, in allocation.go; a file for each step,
// alloc_*.go); everything else only signals it. "Begun" is on disk before the runtime is asked, and
// what has begun is never begun again unless its runtime says that nothing was started: a restarted
// agent attaches, or says that the sandbox died. What had not begun waits after a restart until a
// set asks for it again, because the server may have given it to another node. An ended allocation
// stays, with all its files, until the server says that it may be forgotten.
//
// Package journal has what is on the disk. Nothing is synced but what a fence's term rests on: the
// agent may be killed at any time and the page cache is kept; a power cut ends every sandbox as
// well, and torn files are told from whole ones.
//
// # Goroutines
//
//	Run                one, until ctx ends or another agent takes over
//	live               one for each allocation that has not ended
//	report             one for each reader of reports, paced; serveOutput one for each reader of output
//	sample             one, every few seconds: usage and heartbeats
//	fencing            one waits for the end of the lease, one for that of the guard
//	trash              two, which delete what was forgotten
//	inputs.fetch       one for each input that is fetched
//
// Run waits for all of them; a sandbox start that is under way is finished first.
package agent
