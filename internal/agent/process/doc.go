// Package process is the runtime "process": a sandbox is a process group and
// session of its own under a muster-init, with a clean environment, and, where
// this node lets us, a cgroup. It needs no root and no container runtime.
//
// It must never be taken for isolation: the command runs as the agent's user and
// sees the node's files. All that it shares with other runtimes is in packages initbox and cgroup. The agent core uses it
// through contract.Runtime; the local provider uses Members and Destroy on directories whose agent is dead.
//
// # A sandbox's directory
//
// See package internal/wire/init: "sandbox" (the record, begun here, ended by
// init), "init.sock", "stdout.*" and "stderr.*". Remove deletes the cgroups and the socket and
// keeps the rest: Attach tells the result for as long as the directory exists.
//
// # Limits
//
// With cgroups (root, and a writable hierarchy; v1, v2 and hybrid): memory is a
// hard limit with no swap beside it, cpu is a weight (what is idle may be used),
// pids is Config.PidsLimit. Init is inside, so that one look tells everything;
// the limits have a little room for it. Without cgroups memory is not limited: RLIMIT_AS
// would be, but it counts what is reserved, and Go, Java and others
// reserve far more than they use. Problems says so. Core files are always off, open
// files are limited to a soft 65,536 below the hard limit that the agent has.
package process
