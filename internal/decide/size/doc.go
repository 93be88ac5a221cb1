// Package size says how large the fleet should be, all pools at once: what to
// launch, drain and destroy, which jobs can never run, and why.
//
// It counts waiting members by shape against what is free and what is coming, and
// launches for the rest. It must never touch a held node, take a pool over its maximum or under its
// minimum, or destroy a node that waiting work could use. It is pure: package fit says what fits, the
// fleet loop carries out, and what it plans again after that is nothing.
package size
