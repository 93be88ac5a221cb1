// Package check tries a provider out from end to end: one instance is launched,
// its agent is waited for, one command is run there, the provider's list has to show it, and the instance
// is destroyed, whatever happened before.
//
// The instance is no node: no pool counts it and no work is placed on it. The fleet
// shelters its token from being adopted meanwhile; should this server die, or the destroy not succeed,
// the fleet finds the instance by its tags, in a pool that nobody configured, and ends it. It must never leave an
// instance behind without that. The server runs it for `muster provider check`.
package check
