package reach

import (
	"cmp"
	"context"
	"fmt"
	"net"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/remote"
)

// jumpPrefix begins the names of bastions in the pool, so that none is that of a node.
const jumpPrefix = "bastion "

// jumpConfig is how to log in on a bastion. The key for the host behind it is used where the
// bastion has none of its own.
func (r *Reach) jumpConfig(a cloud.Access) (remote.Config, error) {
	j := a.Jump
	c, err := r.config(cloud.Access{
		Address: j.Address, User: j.User, KeyFile: cmp.Or(j.KeyFile, a.KeyFile), HostKeys: j.HostKeys, KnownHosts: j.KnownHosts,
	}, "")
	if err != nil {
		return c, fmt.Errorf("bastion %s: %w", j.Name(), err)
	}
	return c, nil
}

// jumpError names the bastion in an error of it. A host behind it that refuses is told apart from a
// bastion that does by what follows: "connect to HOST".
func jumpError(j *cloud.Jump, err error) error {
	return &muster.Fault{Kind: muster.KindOf(err), Message: "bastion " + j.Name(), Err: err}
}

// throughShared makes connections over the one connection to the bastion that all nodes behind it
// share. The pool keeps that one alive, and makes it anew when it is lost.
func (r *Reach) throughShared(a cloud.Access) (func(ctx context.Context, address string) (net.Conn, error), error) {
	config, err := r.jumpConfig(a)
	if err != nil {
		return nil, err
	}
	name := jumpPrefix + a.Jump.Name()
	if err := r.pool.Set(name, config); err != nil {
		return nil, jumpError(a.Jump, err)
	}
	r.mu.Lock()
	r.jumps[name] = true
	r.mu.Unlock()
	return func(ctx context.Context, address string) (net.Conn, error) {
		c, err := r.pool.Get(ctx, name)
		if err != nil {
			return nil, jumpError(a.Jump, err)
		}
		conn, err := c.DialTCP(ctx, address)
		if err != nil {
			return nil, jumpError(a.Jump, err)
		}
		return conn, nil
	}, nil
}

// throughOwn makes each connection over one to the bastion of its own: for work on a host that is
// no node, which has to be possible while the pool does not run.
func (r *Reach) throughOwn(a cloud.Access) (func(ctx context.Context, address string) (net.Conn, error), error) {
	config, err := r.jumpConfig(a)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, address string) (net.Conn, error) {
		c, err := remote.Dial(ctx, config)
		if err != nil {
			return nil, jumpError(a.Jump, err)
		}
		conn, err := c.DialTCP(ctx, address)
		if err != nil {
			c.Close()
			return nil, jumpError(a.Jump, err)
		}
		return &jumped{Conn: conn, bastion: c}, nil
	}, nil
}

// jumped is a connection that has a connection to its bastion for itself.
type jumped struct {
	net.Conn
	bastion *remote.Conn
}

// Close also closes the connection to the bastion.
func (j *jumped) Close() error {
	err := j.Conn.Close()
	j.bastion.Close()
	return err
}

// dropJumps closes the connections to bastions that no node is behind any more. A call that is about
// to use one fails with FaultNotFound, and its next attempt makes it again.
func (r *Reach) dropJumps() {
	r.mu.Lock()
	if len(r.jumps) == 0 {
		r.mu.Unlock()
		return
	}
	used := map[string]bool{}
	for _, h := range r.hosts {
		if j := h.access.Jump; j != nil {
			used[jumpPrefix+j.Name()] = true
		}
	}
	var unused []string
	for name := range r.jumps {
		if !used[name] {
			unused = append(unused, name)
			delete(r.jumps, name)
		}
	}
	r.mu.Unlock()
	for _, name := range unused {
		r.pool.Remove(name)
	}
}
