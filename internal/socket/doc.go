// Package socket is a WebSocket whose client may be slow, silent or gone: a client may take its
// time, but not for ever, pings notice that it has left, and the end is said with a reason.
//
// It must never know what the messages mean. internal/httpapi has executions and ports talk over
// it.
package socket
