// Package operate is what operators do: they hold, drain and destroy nodes, look after nodes'
// images, resume pools, try providers, set the limits of namespaces, and see what the loops know
// beside the state. It is the service behind every transport.
//
// It must never decide what the loops decide: an order is a fact, and what follows from it is
// theirs. internal/httpapi uses it; internal/server makes it, and gives it the loops of the present
// leadership.
package operate
