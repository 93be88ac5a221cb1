package initbox

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"syscall"
	"time"

	"github.com/musterhq/muster/internal/wait"
	wire "github.com/musterhq/muster/internal/wire/agent"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

const (
	// initDialTime bounds the connection to an init that does not take it.
	initDialTime = 5 * time.Second
	initDialWait = 2 * time.Millisecond
)

// DialInit connects to the init of the sandbox of dir, for runtimes whose init listens there.
func DialInit(ctx context.Context, dir string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, initDialTime)
	defer cancel()
	for {
		conn, err := wire.DialSocket(ctx, filepath.Join(dir, initwire.Socket))
		// A full backlog: there is no event for its end, and with hundreds that connect at once it happens.
		if !errors.Is(err, syscall.EAGAIN) {
			return conn, err
		}
		if !wait.For(ctx, initDialWait) {
			return nil, err
		}
	}
}
