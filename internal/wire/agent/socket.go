package agent

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
)

// SocketName is the name of the agent's socket inside its directory.
const SocketName = "agent.sock"

// maxSocketPath is what fits into a socket address on Linux, without the final zero.
const maxSocketPath = 107

// DialSocket connects to the unix socket at path. A path that is too long for
// a socket address is reached through its directory's descriptor.
func DialSocket(ctx context.Context, path string) (net.Conn, error) {
	short, done, err := shorten(path)
	if err != nil {
		return nil, err
	}
	defer done()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", short)
	if err != nil {
		return nil, fmt.Errorf("agent socket %s: %w", path, err)
	}
	return conn, nil
}

// ListenSocket makes the unix socket at path, for its owner only, instead of
// any that is there. The caller removes it; path may be longer than a socket address.
func ListenSocket(path string) (net.Listener, error) {
	short, done, err := shorten(path)
	if err != nil {
		return nil, err
	}
	defer done()
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: short, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("agent socket %s: %w", path, err)
	}
	l.SetUnlinkOnClose(false)
	if err := os.Chmod(path, 0o600); err != nil {
		_ = l.Close()
		return nil, err
	}
	return l, nil
}

func shorten(path string) (short string, done func(), err error) {
	if len(path) <= maxSocketPath {
		return path, func() {}, nil
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return "", nil, err
	}
	short = "/proc/self/fd/" + strconv.Itoa(int(dir.Fd())) + "/" + filepath.Base(path)
	return short, func() { _ = dir.Close() }, nil
}

// Unasked are the connections to an http.Server on which nobody has asked anything yet. Its shutdown
// would wait for them: clients make some ahead of their use. The zero value is ready.
type Unasked struct {
	mu    sync.Mutex
	conns map[net.Conn]bool
}

// Changed is an http.Server's ConnState.
func (u *Unasked) Changed(conn net.Conn, to http.ConnState) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if to != http.StateNew {
		delete(u.conns, conn)
		return
	}
	if u.conns == nil {
		u.conns = map[net.Conn]bool{}
	}
	u.conns[conn] = true
}

// Close closes them.
func (u *Unasked) Close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for conn := range u.conns {
		_ = conn.Close()
	}
}
