// Package rootless runs the agent of an ordinary user in a user namespace, where it is root.
//
// Two processes do what one does for root. The inner one is the agent. The outer one is its parent
// and stays where it was started: it starts the sandboxes that are no containers, so that their
// commands run as the user with all that the user may do, and ends with the inner one. A third
// process, in the network namespace of the holder (package userns), makes the networks of sandboxes.
//
// The outer process must never do anything that the user could not: it has no rights that the inner
// one lacks. It must never end a sandbox because it ends.
package rootless
