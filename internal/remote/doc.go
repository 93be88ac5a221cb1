// Package remote reaches hosts over SSH: it dials, checks the host key, runs
// commands, puts files, and connects to unix sockets on the far side.
//
// The node link and the providers that own hosts call it. It must never run
// or send anything before the host key was found right, never learn a key on first use, never wait without a
// deadline, never read policy out of the text of an error, and never let one host hold up another.
//
// # What a connection costs
//
// A [Conn] has four goroutines of its own and two for each open stream; keep-alives are
// timers. The SSH library waits for ever in nearly all of its calls, takes no
// contexts and no deadlines on channels, so that each of its calls here is made
// either below a wire that has a deadline for each read and write, or in a goroutine that can be left behind;
// what is left behind ends with the connection at the latest.
//
// # How a peer that is gone is noticed
//
// Whatever is read or written on the wire must move within [Config.Silence]. A keep-alive is sent every third of it,
// so that there is always something to be read, and its answer must come within it, so that a peer that
// sends other things but no longer answers is noticed as well. [Conn.Done] is the signal.
//
// # Faults
//
// FaultAuth: the host key is not the expected one (*[HostKeyError]), the host refuses our
// key, or sudo wants a password. FaultInvalid: the configuration can never work.
// FaultUnavailable: not reached, silent, lost; try again with back-off. FaultAmbiguous: a command was sent and its
// end is not known. FaultNotFound: what was asked for is not there on the host.
package remote
