// Package destinations decides to which addresses an agent may connect on behalf of others.
//
// Users name URLs of inputs and registries of images, and those may redirect to anywhere. The
// services of the node itself and those by which clouds tell machines their secrets are refused,
// unless an operator has allowed them. agent/inputs and agent/images connect through it, and
// agent/network keeps sandboxes from the same addresses.
//
// It must never decide by name: only the address of a connection counts.
package destinations
