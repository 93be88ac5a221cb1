package main

import (
	"testing"
)

func newStub(t *testing.T) *stub { return newServer(t, assemble) }

func withJob(t *testing.T, members int) *stub {
	s := newStub(t)
	s.addJob(members)
	return s
}

func ran(t *testing.T) *stub {
	s := newStub(t)
	s.addMixedJob()
	return s
}
