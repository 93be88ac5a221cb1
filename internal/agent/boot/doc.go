// Package boot tells one boot of the machine from another, and measures time since the boot.
//
// What an agent leaves on disk often holds only for the boot of the machine that it was written in:
// a process id, a moment until which work may run. The journal, fencing and the runtimes use this
// package to tell. It must never keep state, and never trust the wall clock, which an operator can
// set.
package boot
