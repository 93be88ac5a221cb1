package linktest

import (
	"net"
	"sync"
)

// Silence stops all traffic with the node for good. Its connections stay open, as after a cut of the network or a power failure.
func (n *Node) Silence() {
	n.mu.Lock()
	defer n.mu.Unlock()
	closeOnce(n.silent)
}

// silenced is the agent's end of a connection through which nothing passes once silent is closed.
type silenced struct {
	net.Conn
	silent <-chan struct{}
	once   sync.Once
	closed chan struct{}
}

func (c *silenced) Read(b []byte) (int, error) {
	k, err := c.Conn.Read(b)
	return c.pass(k, err)
}

func (c *silenced) Write(b []byte) (int, error) {
	if k, err := c.pass(len(b), nil); err != nil {
		return k, err
	}
	return c.Conn.Write(b)
}

// pass blocks until the connection is closed if nothing may pass.
func (c *silenced) pass(k int, err error) (int, error) {
	select {
	case <-c.silent:
		<-c.closed
		return 0, net.ErrClosed
	default:
		return k, err
	}
}

func (c *silenced) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
