// Package gcetest is a stand-in of the API of Google Compute Engine, for tests: instances, operations,
// machine types, images, subnetworks, disks and addresses of one project, with the refusals of the
// real one.
//
// It takes requests apart by Google's own discovery document, of which methods.json has what is
// needed: a path, a parameter, a field of a body or of a field mask that the document does not know
// is refused, and an answer that it does not know fails the test. A script says what goes wrong.
//
// It must never know the driver.
package gcetest

//go:generate go run reduce.go
