// Package muster holds the words of Muster: its nouns, their ids, their state
// machines with transition tables, resources, offerings, fault kinds and
// secrets. Everything else speaks in these words.
//
// It must never do anything: no I/O, no clock, no goroutine, no dependency
// outside the standard library. Every other package may import it.
package muster
