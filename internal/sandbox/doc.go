// Package sandbox is what muster-init does: it is the parent of the command of one sandbox. It
// starts the command, keeps what it prints, reaps every orphan, ends it when its time is over or
// when asked, writes down how it ended, and makes sure that nothing of it goes on. It outlives the
// agent.
//
// It must never block the command because of its output, never grow with what the command does,
// never import anything big (its start bounds how many sandboxes a node can begin per second: no
// fmt, no net, no os/signal), and never decide what an end means: it tells facts, the agent names
// them. The protocol is internal/wire/init; only cmd/muster-init runs it.
//
// One goroutine, the loop (loop.go), does all that a sandbox needs which is only run: turn after
// turn, on the thread that the process began with; only a stream with much output is read by one of
// its own. Whatever takes longer than a question and an answer leaves the loop as an operation
// (handover.go) with goroutines of its own: packages execs, files and ports. Reaping does not leave
// the loop: see execs.Executions for why no exit status is ever lost.
//
// It starts all threads before the command, because the sandbox may be full of processes later
// (package system): every system call in an operation either needs a slot of a gate, or is a raw
// one that does not block.
//
// As process 1 of a container (contain.go) init has more rights than anything inside, and it is
// asked by a stranger's programs only through what they leave in its way: names in /etc/passwd,
// links, signals, what is in /proc. So every path of theirs is resolved without the kernel's magic
// links, and init shows nothing of itself.
package sandbox
