// Package agent is the node's side of Muster: it turns desired allocations
// into sandboxes, keeps their output and results until the server has them, and
// reports what is true.
//
// It must never decide where or whether something runs, know a cloud, or
// stop a sandbox because the server is silent or a set lacks it. cmd/muster-node
// runs it; the server's link talks to it through internal/wire/agent.
//
// # An allocation on its node
//
//	a set brings it ─ on disk ─ inputs ─ begun ─ runs ─ outputs ─ ended ─ forgotten
//	                     └─────────┴──── stop: ended without having run
//
// One goroutine takes it from the first to "ended" (live, in alloc.go); everything else
// only signals it. "Begun" is on disk before the runtime is asked, and what has begun is never begun
// again unless its runtime says that nothing was started: a restarted agent attaches, or says that the sandbox died. What had not begun waits after
// a restart until a set asks for it again, because the server may have given it to another node.
// An ended allocation stays, with all its files, until the server says that it may be forgotten.
//
// Package journal has what is on the disk. Nothing is synced but what a fence's term rests on: the agent may be killed
// at any time and the page cache is kept; a power cut ends every sandbox as well, and torn files are told from whole ones.
//
// # Goroutines
//
//	Run                one, until ctx ends or another agent takes over
//	live               one for each allocation that has not ended
//	report             one for each reader of reports, paced; serveOutput one for each reader of output
//	sample             one, every few seconds: usage and heartbeats
//	trash              two, which delete what was forgotten
//	inputs.fetch       one for each input that is fetched
//
// Run waits for all of them; a sandbox start that is under way is finished first.
package agent
