// Package ustar reads and writes the tar format, as far as files of a sandbox need it: ustar, with
// pax records for what does not fit. It also reads what GNU tar and old programs write.
//
// Init has a format of its own because archive/tar, with what it imports, made the start of init 3
// to 9 % slower and its program 9 % larger, and every sandbox starts one. The tests hold this
// package against archive/tar.
//
// A tar is a stranger's. The package must never keep more of it than one header and a bounded
// amount of what comes before an entry, and it must refuse what it does not understand. It knows no
// files: what a name means, and whether it may be followed, is for its caller to decide.
//
// Package files of internal/sandbox uses it.
package ustar
