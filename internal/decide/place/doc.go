// Package place decides which allocation goes on which node, and says why a
// member goes nowhere.
//
// It must never block, look at a clock or depend on the order of a map: the same
// snapshot, window and time give the same decision. It must never look at more
// than package fit sees of a node: what it plans, verify has to find true.
//
// The workers of control/schedule keep a View and call its Plan; the API calls Explain, ExplainMember and Try, and Why where one sentence will do. Files: view.go (what
// follows the feed), class.go and tree.go (its index), field.go (the order of nodes as one shape sees them), plan.go (a pass),
// preempt.go (which allocations are preempted), explain.go and reason.go (an explanation of it as data: they ask the view that plans are made on, and have no rule of their own;
// internal/explain has the sentences). docs/scheduling.md is the order as users read it.
package place
