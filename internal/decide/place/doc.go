// Package place decides which allocation goes on which node, and says why a
// member goes nowhere.
//
// It must never block, look at a clock or depend on the order of a map: the same
// snapshot, window and time give the same decision. It must never look at more
// than package fit sees of a node: what it plans, verify has to find true.
//
// The workers of control/schedule call Plan; the API calls Explain.
package place
