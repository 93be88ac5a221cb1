// Package api holds what crosses Muster's HTTP API: requests, responses,
// events, problems, and the files that users write (JobSpec, ServerConfig). What a server
// does with its configuration is in internal/config.
//
// It must never import anything but the standard library, package muster
// and internal/validate, nor hold behaviour beyond reading, defaulting and validating its own types.
// The server, the Go client and users' programs use it.
package api
