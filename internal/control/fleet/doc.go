// Package fleet makes the machines come and go: it asks package size what to
// launch and to end, package mend what to repair, and carries it out with the
// providers, one file per stage of a node:
//
//	launch.go  intents are committed, instances asked for
//	boot.go    what became of each boot, counted once
//	drain.go   work whose end is due; notice.go: instances that the cloud is about to take
//	delete.go  instances are destroyed, again and again until a list confirms it
//	adopt.go   instances that the state does not know; tags.go: what an instance says of its node
//	list.go    providers are listed; block.go: what they said no to
//
// A node joins by its link, not here.
//
// Intent comes before effect: a node is in the log before its provider is asked, under
// a token by which its instance is found again. Provider calls never hold up the loop. It must never
// destroy a held node, nor believe in an absence that package mend does not believe in.
// The server runs it for as long as it leads.
package fleet
