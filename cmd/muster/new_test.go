package main

import (
	"testing"

	"github.com/musterhq/muster/cmd/muster/internal/clitest"
)

func newStub(t *testing.T) *clitest.Server { return clitest.New(t, assemble) }

func withJob(t *testing.T, members int) *clitest.Server {
	s := newStub(t)
	s.AddJob(members)
	return s
}

func ran(t *testing.T) *clitest.Server {
	s := newStub(t)
	s.AddMixedJob()
	return s
}
