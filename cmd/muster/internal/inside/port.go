package inside

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/cmd/muster/internal/term"
)

// portCommand makes muster port.
func portCommand(a *cli.App) *cobra.Command {
	f := &forwarder{app: a}
	c := a.Command("port ALLOC [[LOCAL:]PORT...]", "Forward TCP ports of a sandbox", `Listens locally and forwards connections to a TCP port in the sandbox of a running allocation, until Ctrl-C.
`+cli.TargetHelp+` The port need not be declared; a port on the sandbox's loopback can be reached as well.

  muster port web                 list the ports that are open inside
  muster port web 8000            127.0.0.1:8000 here is port 8000 inside
  muster port web 9000:8000       127.0.0.1:9000 is
  muster port web 0:8000          a free port here, which is printed
  muster port web 8000 5432       several at once

It listens on loopback. With --address anybody who can reach that address can connect, without a token.`, cobra.MinimumNArgs(1), func(ctx context.Context, args []string) error {
		return f.run(ctx, args)
	})
	c.Flags().StringVar(&f.address, "address", "127.0.0.1", "IP address here to listen on")
	a.NamespaceFlag(c, "namespace of the job")
	return c
}

// forwarder is one use of muster port.
type forwarder struct {
	app *cli.App
	// address is where it listens here.
	address string

	// What follows is set by run.
	cl     *client.Client
	target *cli.Target
	screen *term.Screen

	// told is what was said of connections that failed. A browser tries again many times a second.
	mu   sync.Mutex
	told map[string]bool // what was said of connections that failed
}

// forward is one port on this host that stands for one inside. Its exported fields are what --json
// prints.
type forward struct {
	Listen   string `json:"listen"`
	Port     int    `json:"port"`
	local    int
	listener net.Listener
}

// run listens and passes connections on until a signal. It listens on all ports before it says so:
// whoever reads the lines may connect at once.
func (f *forwarder) run(ctx context.Context, args []string) error {
	var forwards []*forward
	for _, s := range args[1:] {
		w, err := parseForward(s)
		if err != nil {
			return cli.Usage(err)
		}
		forwards = append(forwards, w)
	}
	// A name could stand for several addresses, some of which others reach.
	ip := net.ParseIP(f.address)
	if ip == nil {
		return cli.Usage(fmt.Errorf("--address %s: it is an IP address of this host, as 127.0.0.1", f.address))
	}
	var err error
	if f.cl, f.target, err = f.app.FindRunning(ctx, args[0]); err != nil {
		return err
	}
	f.screen, f.told = term.NewScreen(f.app.Stdout, f.app.Stderr), map[string]bool{}
	// Without a port the question is which there are.
	if len(forwards) == 0 {
		return f.target.Explain(ctx, f.cl, f.list(ctx))
	}
	// If one port cannot be opened, the others are closed.
	defer func() {
		for _, w := range forwards {
			if w.listener != nil {
				_ = w.listener.Close()
			}
		}
	}()
	for _, w := range forwards {
		if err := w.listen(f.address); err != nil {
			return err
		}
	}
	// Whoever reaches this host reaches the sandbox then, and needs no token.
	if !ip.IsLoopback() {
		f.screen.Say("everyone who reaches %s can connect, without a token", f.address)
	}
	f.warn(ctx, forwards)
	if err := f.announce(forwards); err != nil {
		return err
	}
	return f.serve(ctx, forwards)
}

// parseForward reads PORT or LOCAL:PORT. An empty LOCAL stands for a free port.
func parseForward(s string) (*forward, error) {
	local, inside, ok := strings.Cut(s, ":")
	if !ok {
		inside = local
	}
	// Docker has an address in front; here it is a flag, because it holds for all ports.
	if strings.Contains(inside, ":") {
		return nil, fmt.Errorf("%s: write PORT or LOCAL:PORT, and another address than loopback with --address", s)
	}
	port, err := strconv.Atoi(inside)
	if err != nil || port < 1 || port > 65535 {
		return nil, fmt.Errorf("%s: %q is no port; it is 1 to 65535", s, inside)
	}
	w := &forward{Port: port, local: port}
	if ok {
		local = cmp.Or(local, "0")
		if w.local, err = strconv.Atoi(local); err != nil || w.local < 0 || w.local > 65535 {
			return nil, fmt.Errorf("%s: %q is no port here; it is 1 to 65535, or 0 for a free one", s, local)
		}
	}
	return w, nil
}

// listen takes the port on this host. What others use is a frequent mistake, so the error has a
// port that may be free.
func (w *forward) listen(address string) error {
	l, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(w.local)))
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return cli.Failure(fmt.Errorf("port %d is in use here; take another one, as %d:%d, or 0:%d for a free one", w.local, w.local%50000+10000, w.Port, w.Port))
	// Ports below 1024 need privileges on most hosts.
	case errors.Is(err, os.ErrPermission):
		return cli.Failure(fmt.Errorf("port %d may not be used here; take a higher one, as %d:%d, or 0:%d for a free one", w.local, w.local+8000, w.Port, w.Port))
	case err != nil:
		return err
	}
	w.listener, w.Listen = l, l.Addr().String()
	return nil
}

// list prints the ports on which something listens inside.
func (f *forwarder) list(ctx context.Context) error {
	list, err := f.cl.Ports(ctx, f.target.ID)
	if err != nil {
		return err
	}
	if f.app.JSON {
		return f.app.PrintJSON(list)
	}
	if len(list.Ports) == 0 {
		fmt.Fprintf(f.app.Stderr, "muster: nothing listens on a TCP port in %s\n", term.Clean(f.target.Describe()))
		return nil
	}
	var rows [][]string
	for _, p := range list.Ports {
		// What listens on another address than the loopback is not reached, and the table says so.
		rows = append(rows, []string{fmt.Sprint(p.Port), strings.Join(p.Addresses, " "), map[bool]string{true: "yes", false: "no"}[p.Reachable]})
	}
	f.app.PrintTable([]string{"PORT", "ADDRESSES", "REACHABLE"}, rows)
	return nil
}

// warn says on which ports nothing listens inside. It is no error: something may listen later.
func (f *forwarder) warn(ctx context.Context, forwards []*forward) {
	// It must not keep the user from what works.
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	list, err := f.cl.Ports(ctx, f.target.ID)
	if err != nil {
		return // connections will say what is the matter
	}
	for _, w := range forwards {
		i := slices.IndexFunc(list.Ports, func(p api.Port) bool { return p.Port == w.Port })
		switch {
		case i < 0:
			f.screen.Say("nothing listens on port %d in %s yet", w.Port, f.target.Name)
		case !list.Ports[i].Reachable:
			f.screen.Say("what listens on port %d in %s does so on %s, and not on its loopback: it is not reached", w.Port, f.target.Name, strings.Join(list.Ports[i].Addresses, " "))
		}
	}
}

// announce prints where it listens. A port that was chosen by the system is read from there.
func (f *forwarder) announce(forwards []*forward) error {
	if f.app.JSON {
		return f.app.PrintJSON(forwards)
	}
	for _, w := range forwards {
		if _, err := fmt.Fprintf(f.app.Stdout, "%s -> %s:%d\n", w.Listen, f.target.Name, w.Port); err != nil {
			return err
		}
	}
	return nil
}

// serve passes connections on until ctx is over or the allocation has ended. It waits for the
// connections: none outlives the command.
func (f *forwarder) serve(ctx context.Context, forwards []*forward) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for _, w := range forwards {
		wg.Go(func() {
			// Accept knows no context: the closed listener ends it.
			stop := context.AfterFunc(ctx, func() { _ = w.listener.Close() })
			defer stop()
			for {
				conn, err := w.listener.Accept()
				if err != nil {
					if ctx.Err() == nil {
						cancel(fmt.Errorf("%s: %w", w.Listen, err))
					}
					return
				}
				wg.Go(func() {
					if err := f.connection(ctx, conn, w.Port); err != nil {
						cancel(err)
					}
				})
			}
		})
	}
	<-ctx.Done()
	wg.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return ctx.Err()
}

// dialTime bounds how long a connection inside may take to be made.
const dialTime = 30 * time.Second

// connection passes one connection on to the port inside. What is wrong with one connection is said
// and forgotten. An error means that the allocation has ended, and with it all connections.
func (f *forwarder) connection(ctx context.Context, here net.Conn, port int) error {
	defer func() { _ = here.Close() }()
	// The time limit is for the dial alone. The connection may last for days.
	one, cancel := context.WithTimeout(ctx, dialTime)
	inside, err := f.cl.DialPort(one, f.target.ID, port)
	cancel()
	if err != nil {
		if tcp, ok := here.(*net.TCPConn); ok {
			// The client sees a refused connection and not one that was closed, as it would if it
			// were inside.
			_ = tcp.SetLinger(0)
		}
		if ctx.Err() != nil {
			return nil
		}
		// The sandbox is gone, and all ports with it.
		if client.Code(err) == api.CodeEnded {
			return f.target.Explain(ctx, f.cl, err)
		}
		f.tell(fmt.Sprintf("port %d: %v", port, err))
		return nil
	}
	defer func() { _ = inside.Close() }()
	// Both ends are closed when the command ends, which ends the two copies.
	stop := context.AfterFunc(ctx, func() { _, _ = here.Close(), inside.Close() })
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() { pass(inside, here) })
	wg.Go(func() { pass(here, inside) })
	wg.Wait()
	return nil
}

// halfCloser is a connection of which one direction can end while the other goes on.
type halfCloser interface{ CloseWrite() error }

// pass copies one direction of a connection, and ends that direction when its source ends. What
// broke ends both.
func pass(to, from net.Conn) {
	_, err := io.Copy(struct{ io.Writer }{to}, struct{ io.Reader }{from})
	if h, ok := to.(halfCloser); ok && err == nil {
		err = h.CloseWrite()
	}
	if err != nil {
		_, _ = to.Close(), from.Close()
	}
}

// tell says what is wrong with connections, the same only once.
func (f *forwarder) tell(text string) {
	f.mu.Lock()
	was := f.told[text]
	f.told[text] = true
	f.mu.Unlock()
	if !was {
		f.screen.Say("%s", text)
	}
}
