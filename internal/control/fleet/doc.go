// Package fleet makes the machines come and go: it asks package size what to
// launch and to end, package mend what to repair, and carries it out with the
// providers, one file per stage of a node.
//
// Intent comes before effect: a node is in the log before its provider is asked, under
// a token by which its instance is found again. Provider calls never hold up the loop. It must never
// destroy a held node, nor believe in an absence that package mend does not believe in.
// The server runs it for as long as it leads.
package fleet
