// Package account reads the users and groups of a container from its own /etc/passwd and
// /etc/group, and resolves what a job or a client calls a user.
//
// These files are the image's: the package must never trust them with more than who a program of
// that container runs as, never read more of them than its bound, and never wait for one. It knows
// nothing of the node's users.
//
// Packages program, files and execs of internal/sandbox use it.
package account
