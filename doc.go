// Package muster holds the nouns of Muster: their ids, their state machines with transition tables,
// resources, offerings, fault kinds and secrets. Everything else speaks in these words:
//
//   - A job is what a user submits, in a namespace: a template, a count, a priority, a restart
//     policy. A member is one of its count; an allocation is one attempt to run one member on one
//     node.
//   - An environment is a template for runners. A runner is an allocation of an environment; a claim
//     is one holder's right to one runner until a deadline. An execution is one command run in a
//     sandbox, which is what an allocation is on its node.
//   - A node is a machine that runs allocations, and an instance the cloud's machine behind it. A
//     pool is an operator's rule for a set of nodes, an offering what a provider sells, a provider
//     the driver of one kind of cloud.
//   - A fact is an entry in the replicated log, and the only way that state changes. An evaluation
//     is the unit of scheduling work, a plan what a scheduling worker wants changed, a shape what
//     scheduling sees of a member.
//
// docs/glossary.md has them all, with the words of other systems.
//
// The package must never do anything: no I/O, no clock, no goroutine, no dependency outside the
// standard library. Every other package may import it.
package muster
