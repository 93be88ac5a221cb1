// Package runtimetest is the conformance suite of runtimes: what every
// implementation of contract.Runtime must do, tried with real programs (or, for the fake, with its words).
//
// It must never know an implementation: what it checks from outside, it looks
// for itself in /proc and /sys/fs/cgroup. The tests of process, oci and fake call Run.
package runtimetest
