// Package fencing tells an agent which server to obey, and what to do when it hears from none.
//
//   - Fences keeps the highest fence that was obeyed, so that a server that was replaced is refused.
//   - Lease ends the machine when no server has spoken to it for too long: nobody else would end it,
//     and it costs money.
//   - Guard says for how long exclusive allocations may run without hearing from the server: it may
//     start them elsewhere after that. The agent kills them when the guard lapses.
//
// A pool's setting `fence` is the limit of the Guard; Fences have nothing to do with it.
//
// All three outlive the agent: each keeps small files in the agent's directory. Package agent
// renews them with each set that it obeys.
//
// It must never know an allocation, end anything but through the functions that it is given, or
// hold a mutex while it reads or writes a file: those who ask how long the guard holds must not
// wait for a slow disk.
package fencing
