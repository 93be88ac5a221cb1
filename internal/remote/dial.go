package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/wait"
)

const (
	clientVersion = "SSH-2.0-Muster"
	// Attempts where sshd drops connections that nobody has logged in on yet (MaxStartups).
	dialAttempts  = 8
	dialFirstWait = 100 * time.Millisecond
	dialLongWait  = 5 * time.Second
	// maxBanner bounds what is kept of the text that a host shows before the login.
	maxBanner = 1 << 10
)

// errDropped: the connection ended before the host showed a key.
var errDropped = errors.New("closed before it showed a host key (sshd's MaxStartups or a per-source limit, or no sshd)")

// Dial connects and logs in. The host key has been found right when it returns. A host that drops
// the connection at once is tried again with growing, random waits; all else is the caller's to try again.
func Dial(ctx context.Context, config Config) (*Conn, error) {
	c, err := config.ready()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.DialLimit)
	defer cancel()
	delay := dialFirstWait
	for attempt := 1; ; attempt++ {
		conn, err := c.dial(ctx)
		if err == nil || !errors.Is(err, errDropped) || attempt == dialAttempts {
			return conn, err
		}
		// Random over the whole span: those that were dropped together must not come again together.
		if !wait.For(ctx, delay/2+rand.N(delay)) {
			return nil, err
		}
		delay = min(2*delay, dialLongWait)
	}
}

// dial is one attempt.
func (c Config) dial(ctx context.Context) (*Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Silence)
	defer cancel()
	check, wanted, err := c.verify()
	if err != nil {
		return nil, err
	}
	raw, err := c.Through(ctx, c.Address)
	if err != nil {
		f := &muster.Fault{Kind: muster.FaultUnavailable, Message: "host " + c.Address, Err: err}
		// What an operator has to change on the host in between does not pass by waiting.
		if kind := muster.KindOf(err); kind == muster.FaultAuth || kind == muster.FaultInvalid {
			f.Kind = kind
		}
		return nil, f
	}
	w := newWire(raw, c.Silence)
	// The limit for each read is not enough: a peer may send one byte now and then.
	stop := context.AfterFunc(ctx, func() { _ = w.Close() })
	defer stop()
	banner := &excerpt{limit: maxBanner}
	sc, chans, reqs, err := ssh.NewClientConn(w, c.Address, &ssh.ClientConfig{
		User: c.User, Auth: []ssh.AuthMethod{ssh.PublicKeys(c.Signers...)}, ClientVersion: clientVersion,
		HostKeyCallback: check.check, HostKeyAlgorithms: wanted,
		BannerCallback: func(text string) error { _, err := banner.Write([]byte(text)); return err },
	})
	if err != nil {
		return nil, c.refused(ctx, err, check.accepted, banner)
	}
	if !stop() {
		_ = sc.Close()
		return nil, c.refused(ctx, ctx.Err(), true, banner)
	}
	return newConn(c, w, sc, chans, reqs), nil
}

// refused says what a handshake's error means. What it means is read from how far it came, never from its text.
func (c Config) refused(ctx context.Context, err error, accepted bool, banner *excerpt) error {
	f := &muster.Fault{Kind: muster.FaultUnavailable, Message: "host " + c.Address, Err: err}
	var wrong *HostKeyError
	var none *ssh.AlgorithmNegotiationError
	switch {
	case errors.As(err, &wrong):
		return &muster.Fault{Kind: muster.FaultAuth, Err: wrong} // it names the host itself
	case ctx.Err() != nil || late(err):
		at := "it was not heard to be an SSH server"
		if accepted {
			at = "its host key is right, the login did not end"
		}
		f.Err = fmt.Errorf("%s within %s: %w", at, c.Silence, err)
		if errors.Is(ctx.Err(), context.Canceled) {
			f.Err = ctx.Err()
		}
	case errors.As(err, &none):
		f.Kind = muster.FaultInvalid
	case dropped(err) && !accepted:
		f.Err = fmt.Errorf("%w: %w", errDropped, err)
	case dropped(err):
		f.Message += ": it closed the connection during the login" + quoted(banner)
	case accepted:
		var keys []string
		for _, s := range c.Signers {
			keys = append(keys, fingerprint(s.PublicKey()))
		}
		f.Kind = muster.FaultAuth
		f.Message = fmt.Sprintf("host %s does not let %s in with %s%s", c.Address, c.User, strings.Join(keys, ", "), quoted(banner))
	}
	return f
}

func quoted(banner *excerpt) string {
	if text := strings.TrimSpace(banner.String()); text != "" {
		return fmt.Sprintf(" (it says %q)", text)
	}
	return ""
}

// dropped: the connection ended, for whatever reason.
func dropped(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.ErrClosedPipe) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// late: the wire's deadline has passed.
func late(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}
