// Package peers is how the servers of one cluster speak to each other: TLS on one port, on which both
// sides show a certificate of the cluster's own authority.
//
// Three protocols share the port, told apart by ALPN (RFC 7301) in the handshake: the messages of the
// log (a raft.StreamLayer), HTTP between servers, and joining. Only joining takes a connection without a
// certificate: whoever joins has a token instead and gets its certificate in return.
//
// Every server has the key of the authority. So any server can admit another one after the first is
// lost, and each renews its own certificate. That is no loss of safety: a server that leaves the
// cluster in anger has held the whole state, too.
//
// The package must never trust an address: a connection to a server is one to the server's id, which
// its certificate names. It decides nothing about membership; the log does, and the server asks it.
package peers
