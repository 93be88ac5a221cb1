package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/remote/bridge"
)

const (
	// maxNoise bounds what a login shell may print before muster-node speaks.
	maxNoise = 64 << 10
	// maxComplaint bounds what is kept of what muster-node dial says on its stderr.
	maxComplaint = 4 << 10
)

// DialUnix connects to a unix socket on the host. The connection has deadlines and CloseWrite; its
// Close never waits. A host that forbids forwarding, and a socket that only root may use when we are not
// root, are reached through muster-node dial (Config.Program): that costs a process on the host for each connection.
func (c *Conn) DialUnix(ctx context.Context, path string) (net.Conn, error) {
	c.mu.Lock()
	forwarding, reached := c.forwarding, c.reached == path
	c.mu.Unlock()
	if forwarding == ForwardingRefused {
		return c.dialProgram(ctx, path)
	}
	s, err := c.dialForwarded(ctx, path)
	if err == nil {
		return s, nil
	}
	// sshd gives one and the same answer to all: forbidden, no such socket, nobody listens, not for this user.
	var refusal *ssh.OpenChannelError
	if !errors.As(err, &refusal) || reached {
		return nil, err
	}
	if c.program() == "" {
		return nil, err
	}
	through, err := c.dialProgram(ctx, path)
	if err != nil {
		return nil, err // it knows what is wrong
	}
	// It could have begun to listen only just now.
	if again, err := c.dialForwarded(ctx, path); err == nil {
		_ = through.Close()
		return again, nil
	}
	c.mu.Lock()
	c.forwarding = ForwardingRefused
	sudo := c.dialSudo
	c.mu.Unlock()
	why := "its sshd forbids forwarding (AllowTcpForwarding, AllowStreamLocalForwarding, PermitOpen, or permitopen of the key)"
	if sudo {
		why = "its sockets are for root"
	}
	c.log.Info("the host's sockets are reached through muster-node dial", "host", c.config.Address, "why", why)
	return through, nil
}

// Forwarding says how the host's sockets are reached, as far as it is known: the first DialUnix that succeeds finds it out.
func (c *Conn) Forwarding() Forwarding {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.forwarding
}

func (c *Conn) dialForwarded(ctx context.Context, path string) (net.Conn, error) {
	// PROTOCOL of OpenSSH, 2.4.
	to := struct {
		Path      string
		Reserved  string
		Reserved2 uint32
	}{Path: path}
	ch, err := c.openChannel(ctx, "direct-streamlocal@openssh.com", ssh.Marshal(&to))
	if err != nil {
		return nil, c.unreached(path, err)
	}
	c.mu.Lock()
	c.forwarding, c.reached = ForwardingAllowed, path
	c.mu.Unlock()
	return newStream(c, ch, path, make(chan ending, 1)), nil
}

// dialProgram has muster-node on the host carry the bytes.
func (c *Conn) dialProgram(ctx context.Context, path string) (net.Conn, error) {
	if c.program() == "" {
		return nil, muster.Faultf(muster.FaultInvalid, "host %s: connect to %s: its sshd forbids forwarding, and no muster-node is known there", c.config.Address, path)
	}
	c.mu.Lock()
	sudo := c.dialSudo
	c.mu.Unlock()
	s, end, err := c.dialOnce(ctx, path, sudo)
	if err == nil && end.exit == bridge.ExitDenied && !sudo && c.config.User != "root" {
		sudo = true
		if s, end, err = c.dialOnce(ctx, path, sudo); s != nil {
			c.mu.Lock()
			c.dialSudo = true
			c.mu.Unlock()
		}
	}
	if err != nil || s != nil {
		return s, err
	}
	if sudo {
		if err := c.sawSudo(ctx, Result{Exit: end.exit}); err != nil {
			return nil, err
		}
	}
	f := muster.Faultf(muster.FaultUnavailable, "host %s: connect to %s: %s", c.config.Address, path, Result{Exit: end.exit, Signal: end.signal, Stderr: end.complaint}.Failure())
	switch end.exit {
	case bridge.ExitMissing:
		f.Kind = muster.FaultNotFound
	case bridge.ExitDenied:
		f.Kind = muster.FaultAuth
	case exitNoProgram, exitNotExecutable:
		f.Kind = muster.FaultNotFound
		f.Message = fmt.Sprintf("host %s: no muster-node at %s (%s)", c.config.Address, c.program(), lastLine(end.complaint))
	}
	return nil, f
}

// What shells answer for a program that is not there or not to be run.
const (
	exitNotExecutable = 126
	exitNoProgram     = 127
)

// failed is how muster-node dial ended before it was connected.
type failed struct {
	ending
	complaint []byte
}

// dialOnce starts muster-node dial and waits until it is connected: then the stream is not nil.
func (c *Conn) dialOnce(ctx context.Context, path string, sudo bool) (net.Conn, failed, error) {
	words := []string{c.program(), bridge.Verb, path}
	if sudo {
		words = append([]string{"sudo", "-n", "--"}, words...)
	}
	ctx, cancel := context.WithTimeout(ctx, c.config.CommandLimit)
	defer cancel()
	// A shell that stayed in between would hold the outputs open.
	ch, err := c.session(ctx, "exec "+Quote(words...))
	if muster.IsKind(err, muster.FaultAmbiguous) {
		err = c.unreachedBy(path, err) // nothing is lost by asking again
	}
	if err != nil {
		return nil, failed{}, err
	}
	complaint, complained := &excerpt{limit: maxComplaint}, make(chan struct{})
	go func() { // for as long as the stream lives: unread, it would fill the channel's window
		_, _ = io.CopyBuffer(complaint, ch.Stderr(), make([]byte, leastBuffer))
		close(complained)
	}()
	said := make(chan ending, 1)
	s := newStream(c, ch, path, said)
	stop := context.AfterFunc(ctx, func() { _ = s.SetReadDeadline(time.Unix(1, 0)) })
	greeted, err := s.greeting()
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if greeted && err == nil {
		return s, failed{}, nil
	}
	defer func() { _ = s.Close() }()
	if err != nil {
		return nil, failed{}, c.unreachedBy(path, errors.Join(ctx.Err(), err))
	}
	select {
	case <-complained:
	case <-ctx.Done():
	}
	select {
	case end, ok := <-said:
		if !ok {
			return nil, failed{}, c.unreachedBy(path, c.endOf(io.EOF))
		}
		b, _ := complaint.bytes()
		return nil, failed{end, b}, nil
	case <-ctx.Done():
		return nil, failed{}, c.unreachedBy(path, ctx.Err())
	}
}

func (c *Conn) unreachedBy(path string, err error) error {
	return &muster.Fault{Kind: muster.FaultUnavailable, Message: fmt.Sprintf("host %s: connect to %s", c.config.Address, path), Err: err}
}

// greeting reads up to what muster-node says when it is connected, past what a login shell may print before. false
// without an error: it ended before it said so.
func (s *stream) greeting() (bool, error) {
	var seen []byte
	part := make([]byte, leastBuffer)
	for len(seen) < maxNoise {
		n, err := s.Read(part)
		seen = append(seen, part[:n]...)
		if _, after, found := bytes.Cut(seen, []byte(bridge.Greeting)); found {
			<-s.reading
			s.rest = append(bytes.Clone(after), s.rest...)
			s.reading <- struct{}{}
			return true, nil
		}
		if errors.Is(err, io.EOF) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
	return false, fmt.Errorf("the first %d bytes of muster-node dial's output have no greeting: another program, or a login shell that prints too much", maxNoise)
}
