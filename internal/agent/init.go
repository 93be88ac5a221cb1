package agent

import (
	"context"
	"net"
	"path/filepath"

	wire "github.com/musterhq/muster/internal/wire/agent"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// DialInit connects to the init of the sandbox of dir, for runtimes whose init listens there.
func DialInit(ctx context.Context, dir string) (net.Conn, error) {
	return wire.DialSocket(ctx, filepath.Join(dir, initwire.Socket))
}
