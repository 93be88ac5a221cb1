// Package servers has the operations of the HTTP API about the servers themselves: who answers, health,
// the configuration, backup and metrics.
//
// It must never read what users run; those operations are in internal/httpapi.
package servers
