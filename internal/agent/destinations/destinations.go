package destinations

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"time"

	"github.com/musterhq/muster/internal/outbound"
)

// Allowed are the prefixes to which the agent may connect although they are this machine's or its
// cloud's. It applies to what others name: URLs of inputs, registries, and wherever those redirect
// to. The address is checked when a connection is made, after the name was resolved, so that
// neither a redirect nor a name that resolves to something else leads past it.
type Allowed []netip.Prefix

// Parse reads prefixes, as "10.0.0.0/8", and addresses.
func Parse(texts []string) (Allowed, error) {
	var d Allowed
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			a, aerr := netip.ParseAddr(text)
			if aerr != nil {
				return nil, fmt.Errorf("%q is neither an address nor a prefix as 10.0.0.0/8", text)
			}
			p = netip.PrefixFrom(a, a.BitLen())
		}
		d = append(d, p.Masked())
	}
	return d, nil
}

// RefusedError is the error of a connection to an address that is refused. It does not tell whether
// anything listens there.
type RefusedError struct{ Address netip.Addr }

func (e *RefusedError) Error() string {
	return fmt.Sprintf("%s is an address of this node or of its cloud's metadata, where nothing may be fetched from; allow_addresses of the pool can allow it", e.Address)
}

// Metadata are the addresses of the metadata services of clouds, which tell machines their secrets,
// beside the link-local range: those of Alibaba, Azure and Oracle, and over IPv6 of Amazon and
// Google.
func Metadata() []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix("100.100.100.200/32"), netip.MustParsePrefix("168.63.129.16/32"), netip.MustParsePrefix("192.0.0.192/32"),
		netip.MustParsePrefix("fd00:ec2::/32"), netip.MustParsePrefix("fd20:ce::/32"),
	}
}

// Refuses reports whether nothing may be fetched from an address.
func (d Allowed) Refuses(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	for _, p := range d {
		if p.Contains(a) {
			return false
		}
	}
	if a.IsLoopback() || a.IsUnspecified() || a.IsLinkLocalUnicast() || a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return true
	}
	for _, p := range Metadata() {
		if p.Contains(a) {
			return true
		}
	}
	if inner, ok := embedded(a); ok {
		return d.Refuses(inner)
	}
	return a.Is4() && a.As4()[0] == 0 // this host, whatever comes behind
}

// embedded is the IPv4 address in an IPv6 address, to which a translator on the way would send.
func embedded(a netip.Addr) (netip.Addr, bool) {
	if !a.Is6() {
		return a, false
	}
	b := a.As16()
	switch {
	case netip.MustParsePrefix("64:ff9b::/96").Contains(a), netip.MustParsePrefix("64:ff9b:1::/48").Contains(a), netip.MustParsePrefix("::/96").Contains(a):
		return netip.AddrFrom4([4]byte(b[12:16])), true
	case netip.MustParsePrefix("2002::/16").Contains(a):
		return netip.AddrFrom4([4]byte(b[2:6])), true
	}
	return a, false
}

// MaxHeader bounds the header of an answer, in bytes: the default is 10 MiB, and there may be as
// many requests as allocations with inputs.
const MaxHeader = 256 << 10

type hereKey struct{}

// AllowHere lets connections of this context go to loopback addresses: to a registry that the
// operator has named so.
func AllowHere(ctx context.Context) context.Context { return context.WithValue(ctx, hereKey{}, true) }

// control refuses a connection as soon as its address is known, before anything is sent.
func (d Allowed) control(ctx context.Context, _, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	a := at.Addr().Unmap()
	if !d.Refuses(a) || ctx.Value(hereKey{}) != nil && a.IsLoopback() {
		return nil
	}
	return &RefusedError{a}
}

// Transport is for requests to what others name; header bounds the wait for the header of an
// answer. It does not unpack answers. It connects to the agent's own proxy without a check: what
// the proxy may reach is its operator's matter.
func (d Allowed) Transport(header time.Duration) *http.Transport {
	tr := http.DefaultTransport.(*http.Transport).Clone()
	tr.ResponseHeaderTimeout = header
	tr.MaxResponseHeaderBytes = MaxHeader
	tr.DisableCompression = true // digests are of the bytes as they are stored
	guarded := &net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second, ControlContext: d.control}
	proxies, toProxy := outbound.Addresses(tr), tr.DialContext
	tr.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		if proxies[address] {
			return toProxy(ctx, network, address)
		}
		return guarded.DialContext(ctx, network, address)
	}
	return tr
}
