package main

import (
	"testing"

	"github.com/musterhq/muster/cmd/muster/internal/clitest"
)

func newStub(t *testing.T) *clitest.Server { return clitest.New(t, assemble) }
