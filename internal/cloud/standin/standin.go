// Package standin is what the stand-ins of clouds have in common. They play the API of a cloud for
// tests, and package netns gives them machines that can be reached.
//
// It must never know a cloud, or a driver of one.
package standin

// Machines is what stands behind the instances of a stand-in. Package netns has one.
type Machines interface {
	// Start boots a machine with the user data and returns its address.
	Start(id string, userData []byte) (address string, err error)
	// Stop ends it for good. Safe to repeat.
	Stop(id string)
	// State reports whether it runs; one that does not has shut itself down.
	State(id string) (running bool)
}
