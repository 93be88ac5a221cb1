// Package program starts programs in a sandbox: the sandbox's command, and the commands of
// executions. It looks for the program, makes its work directory, takes its user and its
// capabilities into account, and says why a program that could not be started was not, and whose
// fault that is.
//
// As process 1 of a container, init has more rights than anything inside. So every path is opened
// without the kernel's magic links, no program is started with more capabilities than the launcher
// allows, and none is handed a descriptor of init's. The package must never wait for the program
// that it has started: the caller reaps it.
//
// Packages sandbox and execs use it.
package program
