// Package sandbox is what muster-init does: it is the parent of the command of
// one sandbox. It starts the command, keeps what it prints, reaps every orphan,
// ends it when its time is over or when asked, writes down how it ended, and
// makes sure that nothing of it goes on. It outlives the agent.
//
// It must never block the command because of its output, never grow with what
// the command does, never import anything big (its start bounds how many
// sandboxes a node can begin per second: no fmt, no net, no os/signal), and never
// decide what an end means: it tells facts, the agent names them. The protocol is
// internal/wire/init; only cmd/muster-init runs it. Later parts (executions, files, ports) are operations of serve.go.
//
// One goroutine does all of it, turn after turn (loop.go), on the thread that the process began with;
// only a stream with much output is read by one of its own.
package sandbox
