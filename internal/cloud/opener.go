package cloud

import (
	"log/slog"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

// Opener makes the provider of a cloud from its configuration. It asks the cloud nothing yet.
type Opener func(*api.ProviderSpec, Env) (Provider, error)

// Env is what a provider of a cloud needs beside its configuration.
type Env struct {
	// Owner is the id of the cluster.
	Owner string
	// Server is the id that this server of the cluster has for ever. At most one process has it at a
	// time, so what one says that has it was said by this process, or by one that is dead.
	Server string
	// Dir is a directory for what the provider keeps.
	Dir string
	// Access is how its instances are reached, but for their addresses and what the driver knows
	// better where it is empty: the login user of an image, the command that ends a machine.
	Access Access
	// Offerings are those of the configuration, for providers whose operator defines them.
	Offerings []muster.Offering
	Logger    *slog.Logger
}
