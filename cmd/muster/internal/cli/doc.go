// Package cli holds what all commands of muster share: the app with its streams, its flags and its
// signals, the client of the server that is meant, exit codes and errors with hints, and the search
// for the allocation that an argument names.
//
// It must never print the answer of a command and knows no command: it is imported by the packages
// that have them, and by the program that puts them together. What a server is asked goes through
// package client, and through nothing else.
package cli
