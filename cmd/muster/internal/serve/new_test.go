package serve

import (
	"testing"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/cmd/muster/internal/clitest"
)

// newServer is a server without jobs. It runs command lines of this package alone.
func newServer(t *testing.T) *clitest.Server {
	return clitest.New(t, clitest.Root(func(a *cli.App) []*cobra.Command { return Commands(a, Drivers{}) }))
}
