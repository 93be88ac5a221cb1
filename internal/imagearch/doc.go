// Package imagearch finds out for which architectures an image of a registry is, so that a job is placed
// where its image runs. internal/server asks it when a job is submitted to a fleet of several
// architectures.
//
// Only registries of the configuration are asked: nobody who names an image may send the server to an
// address of his choice. It must never keep a submission waiting for long, nor refuse one because a
// registry is out of order: what it does not find out is not known.
package imagearch
