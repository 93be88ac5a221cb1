// Package system has the system calls that every part of muster-init makes: descriptors that block
// (FD) and those that do not (Endpoint), opening a path of the container (OpenInside), waiting for
// children and descriptors, and the gates that bound how many goroutines are in blocking system
// calls (Gate).
//
// It must never make a system call that may block through the Go runtime outside of a gate: once
// the sandbox is full of processes, the runtime aborts when it needs a thread more (threads.go). It
// must never follow one of the kernel's magic links, and never import anything big, because its
// size is paid for at the start of every sandbox.
//
// All packages of internal/sandbox use it, and nothing else does.
package system
