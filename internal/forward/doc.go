// Package forward lets every server of a cluster answer requests. The loops, the links to the nodes and
// the newest state are on the server that leads, so the others pass requests on to it: each request, its
// body and its answer as streams, WebSockets included.
//
// What a follower answers by itself is what needs no newest state: its health, metrics and documents,
// event streams, and reads with ?stale=true. Their answers say how old they may be.
//
// A server that leads asks the others whether it still does before it answers. So no answer is older
// than what any server has confirmed before the request.
//
// It must never repeat a request that may have been carried out, unless repeating it does no harm.
package forward
