// Package poseidon answers Poseidon's REST API, so that its clients can move to this server without
// a change: environments with numbers for names, runners, files, executions over a WebSocket.
//
// It translates and decides nothing: whatever it does, it does by the services behind our own API,
// and all that it knows is in the state. Two things are not, because they live for moments:
// executions that wait for the one connection they are good for, and the listeners of exposed
// ports. Composed by internal/server, when the configuration asks for it.
package poseidon
