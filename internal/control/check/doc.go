// Package check tries a provider from end to end. It launches one instance, waits for its agent,
// runs one command there, waits until the provider's list shows the instance, and destroys it,
// whatever happened before.
//
// The instance is no node: no pool counts it, and no work is placed on it. The fleet shelters its
// token from adoption meanwhile. If this server crashes or the destroy fails, the fleet finds the
// instance by its tags, which name no configured pool, and destroys it.
//
// Package check must never leave an instance behind in a way that the fleet cannot find. The server
// runs it for `muster provider check`.
package check
