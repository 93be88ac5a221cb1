// Package expect estimates when a waiting member may start, from how long the jobs that use the
// capacity have taken before.
//
// It is a guess for people, and nothing may be decided by it. It looks at nodes that exist; nodes
// that the fleet may launch are the concern of package size. Package explain calls it.
package expect
