// Package api holds what crosses Muster's HTTP API: requests, responses,
// events, problems, and the files that users write (JobSpec).
//
// It must never import anything but the standard library and package muster,
// nor hold behaviour beyond reading, defaulting and validating its own types.
// The server, the Go client and users' programs use it.
package api
