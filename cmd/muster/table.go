package main

import (
	"github.com/musterhq/muster/cmd/muster/internal/term"
)

// printJSON prints a value for programs.
func (a *app) printJSON(v any) error {
	return term.WriteJSON(a.stdout, v)
}

// printTable prints rows under headers: with style on a terminal, else in plain columns.
func (a *app) printTable(headers []string, rows [][]string) {
	term.WriteTable(a.stdout, headers, rows)
}

// printFields prints names and values, a line each, without those that are empty.
func (a *app) printFields(pairs ...string) {
	term.WriteFields(a.stdout, pairs...)
}
