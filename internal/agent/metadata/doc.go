// Package metadata reads from the metadata service of a cloud what the cloud is about to do with the
// machine on which it runs: take it, restart it, or perhaps take it.
//
// The server says which cloud's service to ask. Nothing is asked on other hosts: what answers at a
// link-local address there is not known. Each cloud has one reader, which asks and parses; Watch asks
// it again and again and tells changes.
//
// What the service answers is believed, as far as this one node goes: it makes the server drain the
// node, no more. Requests go straight to the address of the service, never through a proxy of the
// environment, and redirects are not followed. Containers cannot reach or play the service: their
// networks leave link-local addresses out. A job that is root on the host itself could, and such a job
// could as well stop the agent.
package metadata
