// Package fleet launches and ends the machines. Package size decides what to launch and what to
// end, package mend decides what to repair, and this package carries that out with the providers.
// There is one file for each stage of a node:
//
//	launch.go  intents are committed, then instances are created
//	boot.go    how each boot ended, counted once
//	drain.go   work that is due to end; notice.go: instances that the cloud will take back
//	delete.go  instances are destroyed, again until a list confirms it
//	adopt.go   instances that the state does not know; tags.go: what an instance says of its node
//	list.go    providers are listed; block.go: what they have refused; keep.go: and what of that
//	           the next leader is to know
//
// A node joins through package link, not here.
//
// Intent comes before effect: a node is in the log, with a token, before its provider is asked. The
// provider stores the token with the instance, so a list finds the instance again after a crash.
//
// Provider calls run in goroutines of their own and never delay the loop. Package fleet must never
// destroy a held node, nor treat an instance as gone unless package mend does. The server runs it
// for as long as it leads.
package fleet
