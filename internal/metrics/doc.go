// Package metrics has the server's metrics: what is true of the state, read off a snapshot when
// somebody asks, and what door and services count as it happens. Other packages register theirs in
// its registry.
//
// It must never keep a copy of the state, or count what the state knows. internal/server makes it;
// internal/httpapi shows it.
package metrics
