// Package contexts has the commands by which a user gives servers names and chooses one of them.
//
// The file of contexts belongs to package internal/locate, which also decides which server a command
// means. This package must never show a token.
package contexts
