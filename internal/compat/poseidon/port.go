package poseidon

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/wait"
)

const (
	// lookAgain is how often a listener looks whether its runner is still claimed.
	lookAgain = time.Second
	// maxForwards bounds the connections to one port of a runner; further ones wait.
	maxForwards = 256
)

// mapPorts opens the exposed ports of a runner on the address that the client came to, for as long
// as the runner is claimed and this server runs: whoever reaches that address reaches them. What
// cannot be opened is left out, and logged.
func (p *Poseidon) mapPorts(r *http.Request, c *state.Claim) []mappedPort {
	out := []mappedPort{}
	al := p.cfg.State.Latest().Alloc(c.Runner)
	local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	if al == nil || !ok || len(al.Run.Spec.Ports) == 0 {
		return out
	}
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = strings.Trim(r.Host, "[]")
	}
	// The request ends soon, the server later.
	ctx, stop := p.streaming(context.WithoutCancel(r.Context()))
	var all []net.Listener
	for _, port := range al.Run.Spec.Ports {
		l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: local.IP, Zone: local.Zone})
		if err != nil {
			p.logger.Warn("port not opened", "runner", c.Runner, "port", port, "error", err)
			continue
		}
		all = append(all, l)
		out = append(out, mappedPort{port, net.JoinHostPort(host, strconv.Itoa(l.Addr().(*net.TCPAddr).Port))})
		go p.forward(ctx, l, c, port)
	}
	go func() {
		defer stop()
		p.whileClaimed(ctx, string(c.Runner))
		for _, l := range all {
			_ = l.Close()
		}
	}()
	return out
}

// whileClaimed waits for the end of a claim, or of the server.
func (p *Poseidon) whileClaimed(ctx context.Context, runner string) {
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	for {
		if _, err := p.claimed(runner); err != nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// forward takes connections until the listener is closed.
func (p *Poseidon) forward(ctx context.Context, l net.Listener, c *state.Claim, port int) {
	slots := make(chan struct{}, maxForwards)
	for {
		conn, err := l.Accept()
		var late net.Error
		switch {
		case err == nil:
		case errors.Is(err, net.ErrClosed):
			return
		case errors.As(err, &late):
			// Out of descriptors, most often: it gets better.
			if !wait.For(ctx, lookAgain) {
				return
			}
			continue
		default:
			return
		}
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			_ = conn.Close()
			return
		}
		go func() {
			defer func() { <-slots }()
			p.join(ctx, conn.(*net.TCPConn), string(c.Runner), c.ID, port)
		}()
	}
}

// join serves one connection into a runner. It is use of the runner until the client closes its
// side. A program that never closes the other one keeps neither the runner nor, for long, the
// connection.
func (p *Poseidon) join(ctx context.Context, out *net.TCPConn, runner string, claim muster.ClaimID, port int) {
	defer func() { _ = out.Close() }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = out.Close() })()
	if _, err := p.claimed(runner); err != nil {
		return
	}
	endUse := sync.OnceFunc(p.cfg.Claims.Use(claim))
	defer endUse()
	in, err := p.cfg.Inside.Ports.Connect(ctx, runner, port)
	if err != nil {
		p.logger.Debug("connection not forwarded", "runner", runner, "port", port, "error", err)
		_ = out.SetLinger(0) // refused, as far as can be told now
		return
	}
	defer func() { _ = in.Close() }()
	answer := &lingering{half: out, limit: p.patience.halfClosed, expired: cancel}
	defer answer.stop()
	var both sync.WaitGroup
	both.Go(func() {
		pour(in, out, cancel)
		endUse()
		answer.linger()
	})
	both.Go(func() { pour(answer, in, cancel) })
	both.Wait()
}

// lingering is the direction to a client. Once that client has closed its own side, the connection
// ends when nothing was sent for limit.
type lingering struct {
	half
	limit   time.Duration
	expired func()

	mu      sync.Mutex
	timer   *time.Timer
	stopped bool
}

func (l *lingering) linger() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.stopped {
		l.timer = time.AfterFunc(l.limit, l.expired)
	}
}

func (l *lingering) Write(b []byte) (int, error) {
	n, err := l.half.Write(b)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil && !l.stopped {
		l.timer.Reset(l.limit)
	}
	return n, err
}

func (l *lingering) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
	if l.timer != nil {
		l.timer.Stop()
	}
}

// half can be told that nothing more comes.
type half interface {
	io.Writer
	CloseWrite() error
}

// pour copies one direction to its end; broken ends the other as well.
func pour(to half, from io.Reader, broken func()) {
	// Nothing but the two methods: the kernel's own ways of copying know nothing of tunnels.
	_, err := io.Copy(struct{ io.Writer }{to}, struct{ io.Reader }{from})
	if err == nil {
		err = to.CloseWrite()
	}
	if err != nil {
		broken()
	}
}
