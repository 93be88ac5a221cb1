// Package clusterconfig keeps the configuration that a server runs with: the cluster's part of what is
// in force, which the log has, and the server's own part of its file (package config says which is
// which). It decides when the file of a server becomes the cluster's configuration, and tells where
// the two differ.
//
// A file takes effect only by an act that somebody meant: the first leader of a cluster applies its
// file, a server without others applies its file when it starts and the file has changed, and the
// leader applies its file when it is told to reload. Or an operator sends a configuration. Another
// leader with another file changes nothing, so that no hand-over ever drains nodes.
//
// It must never put secrets or paths of a server's files into the log, and it runs no loops: whoever
// uses it starts those again when Watch tells of a change.
package clusterconfig
