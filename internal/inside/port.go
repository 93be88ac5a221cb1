package inside

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/state"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// Ports are the TCP ports on which something in a sandbox listens, as init finds them.
type Ports struct{ *entrance }

// List lists the ports on which something listens now, each once, with all its addresses.
func (p *Ports) List(ctx context.Context, id string) ([]api.Port, error) {
	al, conn, err := p.enter(ctx, id)
	if err != nil {
		return nil, err
	}
	bounded, cancel := soon(ctx)
	defer cancel()
	list, err := initwire.ListPorts(bounded, conn)
	if err != nil {
		return nil, p.problemOf(ctx, al, err)
	}
	ports := map[int]*api.Port{}
	for i := range list {
		l := &list[i]
		p := ports[l.Port]
		if p == nil {
			p = &api.Port{Port: l.Port}
			ports[l.Port] = p
		}
		if ip, ok := netip.AddrFromSlice(l.IP); ok && !slices.Contains(p.Addresses, ip.String()) {
			p.Addresses = append(p.Addresses, ip.String())
		}
		p.Reachable = p.Reachable || l.Reachable()
	}
	out := []api.Port{}
	for _, p := range ports {
		slices.Sort(p.Addresses)
		out = append(out, *p)
	}
	slices.SortFunc(out, func(x, y api.Port) int { return cmp.Compare(x.Port, y.Port) })
	return out, nil
}

// Connect opens a TCP connection to a port on the loopback of an allocation's sandbox. It lasts
// until ctx ends. If nothing listens there, the error is a problem with the code no-listener.
func (p *Ports) Connect(ctx context.Context, id string, port int) (Conn, error) {
	al, conn, err := p.enter(ctx, id)
	if err != nil {
		return nil, err
	}
	bounded, cancel := soon(ctx)
	defer cancel()
	switch err := initwire.ConnectPort(bounded, conn, port); {
	case err == nil:
		return conn, nil
	// Init refuses for other reasons too; this one names the port.
	case errors.Is(err, initwire.ErrRefused) && strings.Contains(err.Error(), "port "+strconv.Itoa(port)):
		return nil, noListener(al, port, err)
	default:
		return nil, p.problemOf(ctx, al, err)
	}
}

// noListener is told apart from other failures because clients wait for a server inside to come up.
func noListener(al *state.Alloc, port int, err error) error {
	return problem.New(http.StatusBadGateway, api.CodeNoListener, fmt.Sprintf("allocation %s, port %d: %s", al.ID, port, problem.Printable(err.Error())))
}
