// Package contract is what an agent needs of others: runtimes that make sandboxes, a store of
// images, networks, and the values that pass between them.
//
// Package agent depends on it, and so do those who implement it: agent/process, agent/oci and
// agent/fake (runtimes, with what they share in agent/initbox), agent/images and agent/network.
// cmd/muster-node puts them together. agent/runtimetest holds the tests that each runtime passes.
//
// It must never do anything: no files, no processes, no clock. Errors are *muster.Failure where the
// class matters, with a message that fits a report.
package contract
