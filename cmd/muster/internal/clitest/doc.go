// Package clitest is a server for tests of commands: it answers with what a test tells it, fails on
// cue, and runs the command line against itself. Commands in its sandboxes are run on this host,
// and their files are those of a folder.
//
// What a real server answers is tested by the scripts of cmd/muster; nothing here may be taken for
// that. Only tests import it.
package clitest
