// Package cgroup gives each sandbox of an agent a control group: made and limited
// before its first process, measured from outside, removed with all that is in it. On v1, v2 and hybrid hosts.
//
// It must never keep state of its own: the directories of a sandbox's cgroup are in its record, and everything here
// works on them alone, in whichever agent. It must never touch a cgroup that is not below its parent. The runtimes
// process and oci use it.
//
// On cgroup v1 a process is not moved after its start: that takes a lock of all
// processes and, on an idle machine, 5 to 11 ms. Instead the thread that forks
// moves itself there and back, which is free of that lock; the child begins inside.
package cgroup
