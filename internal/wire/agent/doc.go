// Package agent is the protocol between the server's link and the agent on a
// node: plain HTTP with JSON over a unix socket, so that an operator can curl
// the same socket. This package holds its types and a thin client.
//
// It must never decide anything. The link (server side) and internal/agent
// (node side) use it. Neighbours speak Protocol N and N-1: fields are only
// added, unknown ones are skipped.
//
//	GET  /v1/agent                              Hello
//	PUT  /v1/desired                            Desired → DesiredAnswer
//	GET  /v1/reports                            stream of Report, one JSON object a line
//	GET  /v1/allocs/{id}/output/{stream}        bytes from ?offset=, ?follow=true goes on until the end
//	GET  /v1/allocs/{id}/outputs/{n}            tar of the n-th collected output
//	POST /v1/allocs/{id}/init                   with Upgrade: muster-init, a connection to the sandbox's init (package initwire)
//	GET  /v1/allocs/{id}/stats                  Stats
//	PUT  /v1/inputs/{digest}                    bytes of an input that a report asked for
//	PUT  /v1/grants                             Grant: the right to pull an image that a report asked for
//	GET  /v1/images                             ImageList
//	POST /v1/images                             PullImage → stream of PullProgress, one JSON object a line
//	POST /v1/images/prune                       Pruned; ?all=true: everything unused
//	POST /v1/probe                              Probe → ProbeAnswer
//	POST /v1/release?cluster=ID                 an operator frees the agent from cluster ID
//	POST /v1/step-down                          the agent exits and leaves its sandboxes to the next one
//
// A refusal to obey is a 409 whose body has a code (Refusal); every other error has a Problem. PUT
// /v1/desired carries the Protocol of its body in HeaderProtocol.
package agent
