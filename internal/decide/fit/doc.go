// Package fit is the one rule of what may go where: the shape of a member, what
// keeps it from a node, how much room a node has, and which of several nodes is
// the best.
//
// It must never decide anything by itself, and there must never be a second
// such rule: an allocation that place counts and verify does not is how nodes
// come to be over capacity. Package place uses it to find nodes, verify to check
// a plan, the broker to know which blocked jobs freed room could help, and size
// to know which offering a member could ever run on.
package fit
