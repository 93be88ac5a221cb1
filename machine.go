package muster

import "fmt"

// A state machine in this package is a table of the moves that are allowed.
// Only package state makes moves; the tables also draw ARCHITECTURE.md.

// Move is one allowed transition of a state machine, with what causes it.
type Move[S ~string] struct {
	From, To S
	// Why is the cause in a few words, for the generated diagrams.
	Why string
}

// MoveError says that a noun cannot go from one state to another.
type MoveError struct {
	// Noun is what was to be moved, as "node n1".
	Noun     string
	From, To string
}

func (e *MoveError) Error() string {
	return fmt.Sprintf("%s cannot go from %s to %s", e.Noun, e.From, e.To)
}

func to[S ~string](noun string, moves []Move[S], from, next S) (S, error) {
	for _, m := range moves {
		if m.From == from && m.To == next {
			return next, nil
		}
	}
	return from, &MoveError{Noun: noun, From: string(from), To: string(next)}
}
