// Package term is how the command line speaks to a person or a program: tables, fields, JSON,
// progress bars, sizes and ages for people, and the terminal itself with its raw mode.
//
// Text from elsewhere goes through Clean or OneLine before it is printed. A job's name, its reason
// and its file names are chosen by others, and an escape sequence in them must not reach the
// terminal of whoever looks.
//
// It must never know a job, a client or a command: it takes words and writers. All packages of the
// command line use it.
package term
