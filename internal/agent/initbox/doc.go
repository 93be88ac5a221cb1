// Package initbox keeps sandboxes whose first process is a muster-init, for the runtimes that make such: it writes
// their record, hands init its descriptors and its start, watches it from outside, reads the output, names the end,
// and ends everything. What differs between runtimes is only how init comes to life (Plan.Spawn) and what surrounds it.
//
// It must never keep anything that is needed after a restart of the agent anywhere but in the sandbox's
// directory, and never signal a pid without knowing that it is still the same process. The runtimes process and oci
// are built on it; who takes an agent's directory apart (provider local, tests) uses Members, Destroy and Look on it alone.
//
// # A sandbox's directory
//
// See package internal/wire/init. Of the runtime process, init writes to the record and next to it: it is the same
// user, and not walled off. Of others:
//
//	sandbox      the record, the agent's lines only
//	out/         all that init sees of this directory, as a mount of its own: record, its lines; stdout.*, stderr.*
//	box/         the runtime's own (state of the runtime program, writable layer); gone when the sandbox is removed
//	init.sock    where init listens
//
// What init says of a walled sandbox is untrusted: it is believed for the exit code and for times between the
// start and now. That it is dead, that it was out of memory and what it used is learned from outside. Nothing in
// out is followed, waited for, or read without a bound.
package initbox
