package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/musterhq/muster"
)

func at(ip, port string) string { return net.JoinHostPort(ip, port) }

func TestWayOut(t *testing.T) {
	p := newPool(t, nil)
	listen(t, theWorld.path(), at(farAddr, "80"))
	n := take(t, p, "a", bridge())
	if from := reaches(t, n.Path, at(farAddr, "80")); from != nodeAddr {
		t.Errorf("the world saw %s, not the node's address", from)
	}
	if want := []string{"nameserver " + routerAddr, "search example.test"}; !slices.Equal(n.DNS, want) {
		t.Errorf("DNS is %q, not %q", n.DNS, want)
	}
	if err := within(n.Path, func() error {
		i, err := net.InterfaceByName(inside)
		if err == nil && i.MTU != 1450 {
			t.Errorf("the MTU inside is %d, that of the way out is 1450", i.MTU)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

func TestMetadataIsNotReached(t *testing.T) {
	p := newPool(t, nil)
	open, listed := take(t, p, "a", bridge()), take(t, p, "b", Spec{Mode: muster.NetworkBridge, Egress: prefixes("0.0.0.0/0")})
	for _, addr := range []string{metadataAddr, alibabaAddr} {
		listen(t, theWorld.path(), at(addr, "80"))
		reaches(t, home(), at(addr, "80")) // it is there, for the node
		refused(t, open.Path, at(addr, "80"))
		refused(t, listed.Path, at(addr, "80"))
	}
}

// The route inside is one wall; this one is without it.
func TestMetadataIsNotReachedByRulesAlone(t *testing.T) {
	p := newPool(t, nil)
	n := take(t, p, "a", bridge())
	listen(t, theWorld.path(), at(metadataAddr, "80"))
	inNamespace(t, n.Path, func(h *handle) {
		h.delRoute(t, linkLocal)
	})
	refused(t, n.Path, at(metadataAddr, "80"))
}

// The route is the other wall: it stands while somebody has flushed the rules.
func TestMetadataIsNotReachedByRouteAlone(t *testing.T) {
	p := newPool(t, nil)
	n := take(t, p, "a", bridge())
	listen(t, theWorld.path(), at(metadataAddr, "80"))
	if err := p.rules.remove(); err != nil {
		t.Fatal(err)
	}
	refused(t, n.Path, at(metadataAddr, "80"))
	if err := p.rewrite(); err != nil {
		t.Fatal(err)
	}
}

func TestNodeIsNotReached(t *testing.T) {
	p := newPool(t, nil)
	n := take(t, p, "a", Spec{Mode: muster.NetworkBridge, Egress: prefixes("0.0.0.0/0")})
	listen(t, home(), at("0.0.0.0", "8080"))
	reaches(t, home(), at(nodeAddr, "8080"))
	refused(t, n.Path, at(nodeAddr, "8080"))
	refused(t, n.Path, at(address(p.subnet, 1).String(), "8080")) // the gateway is nobody
	refused(t, n.Path, at(address(p.subnet, 77).String(), "8080"))
}

func TestPorts(t *testing.T) {
	p := newPool(t, nil)
	server := take(t, p, "server", Spec{Mode: muster.NetworkBridge, Ports: []int{80, 8443}})
	client := take(t, p, "client", bridge())
	listen(t, server.Path, at("0.0.0.0", "80")) // below 1024, and see TestSettings
	listen(t, server.Path, at("0.0.0.0", "81"))
	ip := server.IP.String()
	if from := reaches(t, client.Path, at(ip, "80")); from != client.IP.String() {
		t.Errorf("the server saw %s, not the client's address %s", from, client.IP)
	}
	reaches(t, home(), at(ip, "80"))
	refused(t, client.Path, at(ip, "81"))
	refused(t, home(), at(ip, "81"))
	refused(t, client.Path, at(ip, "8443")) // declared, nobody listens
	// Others of the outer network, though they can route to it, are not "others on the node".
	inNamespace(t, theWorld.path(), func(h *handle) { h.addRoute(t, p.subnet, nodeAddr) })
	refused(t, theWorld.path(), at(ip, "80"))
	inNamespace(t, theWorld.path(), func(h *handle) { h.delRoute(t, p.subnet) })
}

func TestEgressList(t *testing.T) {
	p := newPool(t, nil)
	listen(t, theWorld.path(), at(farAddr, "80"))
	listen(t, theWorld.path(), at(otherAddr, "80"))
	server := take(t, p, "server", Spec{Mode: muster.NetworkBridge, Ports: []int{80}})
	listen(t, server.Path, at("0.0.0.0", "80"))
	n := take(t, p, "a", Spec{Mode: muster.NetworkBridge, Ports: []int{81}, Egress: prefixes("198.51.100.0/25", "198.51.100.0/24", "198.51.101.0/24", "2001:db8::/32")})
	listen(t, n.Path, at("0.0.0.0", "81"))
	reaches(t, n.Path, at(farAddr, "80"))
	refused(t, n.Path, at(otherAddr, "80"))
	refused(t, n.Path, at(server.IP.String(), "80")) // not in the list
	reaches(t, server.Path, at(n.IP.String(), "81")) // but it can answer
	if len(n.DNS) != 0 {
		t.Errorf("a resolver that the list leaves out is offered: %q", n.DNS)
	}
	nowhere := take(t, p, "b", Spec{Mode: muster.NetworkBridge, Egress: prefixes()})
	refused(t, nowhere.Path, at(farAddr, "80"))
	everywhere := take(t, p, "c", Spec{Mode: muster.NetworkBridge, Egress: prefixes("0.0.0.0/0")})
	reaches(t, everywhere.Path, at(otherAddr, "80"))
	reaches(t, everywhere.Path, at(server.IP.String(), "80"))
}

func TestResolverAtTheNodesOwnAddress(t *testing.T) {
	p := newPool(t, nil)
	p.node.resolvers = []netip.Addr{netip.MustParseAddr(nodeAddr), netip.MustParseAddr(metadataAddr)} // some clouds' resolver is at the metadata address
	if err := p.rewrite(); err != nil {
		t.Fatal(err)
	}
	n := take(t, p, "a", bridge())
	listen(t, home(), at(nodeAddr, "53"))
	listen(t, home(), at(nodeAddr, "8080"))
	listen(t, theWorld.path(), at(metadataAddr, "53"))
	listen(t, theWorld.path(), at(metadataAddr, "80"))
	reaches(t, n.Path, at(nodeAddr, "53"))
	reaches(t, n.Path, at(metadataAddr, "53"))
	refused(t, n.Path, at(nodeAddr, "8080"))
	refused(t, n.Path, at(metadataAddr, "80"))
	heard := listenUDP(t, home(), at(nodeAddr, "53"))
	sendUDP(t, n.Path, at(nodeAddr, "53"), "query")
	if got := heard(); got != "query" {
		t.Errorf("the resolver heard %q", got)
	}
}

func TestPing(t *testing.T) {
	p := newPool(t, nil)
	n := take(t, p, "a", bridge())
	if err := ping(n.Path, farAddr); err != nil {
		t.Fatal(err)
	}
}

// The very first packet of a sandbox and its answer arrive, whether its network was made just now or ahead of
// need: one echo each, and none is sent again.
func TestFirstPacket(t *testing.T) {
	const many = 100
	needNode(t)
	listen(t, theWorld.path(), at(farAddr, "80"))
	reaches(t, home(), at(farAddr, "80")) // from here on the node knows its router's hardware address
	for name, ahead := range map[string]bool{"made now": false, "made ahead": true} {
		t.Run(name, func(t *testing.T) {
			p := newPool(t, nil)
			if ahead {
				run(t, p)
			}
			for i := range many {
				n := take(t, p, strconv.Itoa(i), bridge())
				if err := ping(n.Path, farAddr); err != nil {
					t.Fatalf("sandbox %d of %d: %v", i+1, many, err)
				}
			}
		})
	}
}

// The wait ends when the other end comes up, and with the context where it never does.
func TestSending(t *testing.T) {
	needNode(t)
	ns, h, err := newSpace()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { h.Close(); _ = ns.Close() }()
	pair := netlink.NewVeth(netlink.LinkAttrs{Name: "one", TxQLen: -1})
	pair.PeerName = "other"
	if err := errors.Join(h.LinkAdd(pair), h.LinkSetUp(pair)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := sending(ctx, h, pair.Index); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "one") {
		t.Errorf("an end whose other end is down: %v", err)
	}
	waited := make(chan error)
	go func() { waited <- sending(t.Context(), h, pair.Index) }()
	inNamespace(t, (&space{ns: ns}).path(), func(other *handle) {
		l, err := other.h.LinkByName("other")
		if err == nil {
			err = other.h.LinkSetUp(l)
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	if err := <-waited; err != nil {
		t.Error(err)
	}
}

// ping sends one echo request and waits for its answer. Without any privilege, as programs in a sandbox do.
func ping(ns, to string) error {
	return within(ns, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMP)
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		defer func() { _ = unix.Close(fd) }()
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 20}); err != nil {
			return err
		}
		echo := []byte{8, 0, 0, 0, 0, 0, 0, 1, 'h', 'i'}
		if err := unix.Sendto(fd, echo, 0, &unix.SockaddrInet4{Addr: netip.MustParseAddr(to).As4()}); err != nil {
			return os.NewSyscallError("sendto", err)
		}
		b := make([]byte, 100)
		size, err := unix.Read(fd, b)
		if err == nil && (b[0] != 0 || string(b[8:size]) != "hi") {
			return fmt.Errorf("the answer is %q", b[:size])
		}
		return os.NewSyscallError("read", err)
	})
}

func TestNone(t *testing.T) {
	p := newPool(t, nil)
	n := take(t, p, "a", Spec{Mode: muster.NetworkNone})
	listen(t, n.Path, at("127.0.0.1", "80"))
	reaches(t, n.Path, at("127.0.0.1", "80"))
	refused(t, n.Path, at(farAddr, "80"))
	if n.IP.IsValid() || n.DNS != nil {
		t.Errorf("it has an address or a resolver: %+v", n)
	}
	path := n.Path
	if err := p.Release(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the descriptor is still open: %v", err)
	}
}

func TestSettings(t *testing.T) {
	p := newPool(t, nil)
	for id, s := range map[string]Spec{"a": bridge(), "b": {Mode: muster.NetworkNone}} {
		n := take(t, p, id, s)
		if err := within(n.Path, func() error {
			for _, s := range settings {
				got, err := os.ReadFile(s.file)
				if err != nil {
					return err
				}
				if !slices.Equal(strings.Fields(string(got)), strings.Fields(s.value)) {
					t.Errorf("%s is %q, not %q", s.file, got, s.value)
				}
			}
			l, err := net.Listen("tcp6", "[::1]:80")
			if err != nil {
				return err
			}
			return l.Close()
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// A packet with another's address is dropped, whatever it is for.
func TestSpoofing(t *testing.T) {
	p := newPool(t, nil)
	victim, liar := take(t, p, "victim", bridge()), take(t, p, "liar", bridge())
	heard := listenUDP(t, theWorld.path(), at(farAddr, "9"))
	for _, source := range []netip.Addr{victim.IP, netip.MustParseAddr(otherAddr), netip.MustParseAddr(nodeAddr), address(p.subnet, 99)} {
		// First by a raw packet under the kernel's eyes, then the honest one; they arrive in order.
		sendRaw(t, liar.Path, source, netip.MustParseAddr(farAddr), 9, "lie")
		sendRaw(t, liar.Path, liar.IP, netip.MustParseAddr(farAddr), 9, "truth")
		if got := heard(); got != "truth" {
			t.Errorf("a packet with source %s arrived: %q", source, got)
		}
	}
	// The same without rules: the interface itself refuses other sources (reverse path).
	if err := p.rules.remove(); err != nil {
		t.Fatal(err)
	}
	sendRaw(t, liar.Path, victim.IP, netip.MustParseAddr(farAddr), 9, "lie")
	sendRaw(t, liar.Path, liar.IP, netip.MustParseAddr(farAddr), 9, "truth")
	if got := heard(); got != "truth" {
		t.Errorf("without rules a packet with the source of another arrived: %q", got)
	}
	if err := p.rewrite(); err != nil {
		t.Fatal(err)
	}
}

// IPv6 is off inside; a sandbox that could switch it on would still get nowhere.
func TestIPv6IsDropped(t *testing.T) {
	if _, err := os.Stat("/proc/sys/net/ipv6"); err != nil {
		t.Skip("this kernel has no IPv6")
	}
	p := newPool(t, nil)
	n := take(t, p, "a", bridge())
	link := p.names.link(p.entries["a"].index)
	i, err := net.InterfaceByName(link)
	if err != nil {
		t.Fatal(err)
	}
	if addrs, err := i.Addrs(); err != nil || len(addrs) != 0 {
		t.Errorf("the host's end has addresses: %v %v", addrs, err)
	}
	hw := [2]net.HardwareAddr{hardware(0, n.IP), hardware(1, n.IP)}
	inNamespace(t, home(), func(h *handle) { h.join6(t, link, "fd00:1::1", "fd00:1::2", hw[1]) })
	if err := within(n.Path, func() error {
		return os.WriteFile("/proc/sys/net/ipv6/conf/"+inside+"/disable_ipv6", []byte("0"), 0)
	}); err != nil {
		t.Fatal(err)
	}
	inNamespace(t, n.Path, func(h *handle) { h.join6(t, inside, "fd00:1::2", "fd00:1::1", hw[0]) })
	heard := listenUDP(t, home(), "[::]:9")
	send := func() {
		sendUDP(t, n.Path, "[fd00:1::1]:9", "from inside")
		sendUDP(t, home(), "[fd00:1::1]:9", "from the node")
	}
	send()
	if got := heard(); got != "from the node" {
		t.Errorf("a packet of IPv6 arrived at the node: %q", got)
	}
	// Without the rules it does arrive, so that the test is worth something.
	if err := p.rules.remove(); err != nil {
		t.Fatal(err)
	}
	send()
	if got := heard(); got != "from inside" {
		t.Errorf("the test's own IPv6 does not work: %q", got)
	}
	if err := p.rewrite(); err != nil {
		t.Fatal(err)
	}
}

func TestResolvers(t *testing.T) {
	dir := t.TempDir()
	stub, real, none := filepath.Join(dir, "stub"), filepath.Join(dir, "real"), filepath.Join(dir, "none")
	for file, text := range map[string]string{
		stub: "nameserver 127.0.0.53\noptions edns0\n",
		real: "# nameserver 192.0.2.9\nnameserver 192.0.2.1\nnameserver fd00::1\nnameserver 192.0.2.1\nnameserver\nsearch a.test b.test\n",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	servers, others := resolvers([]string{none, stub, real})
	if !slices.Equal(servers, []netip.Addr{netip.MustParseAddr("192.0.2.1")}) || !slices.Equal(others, []string{"search a.test b.test"}) {
		t.Errorf("%v %q", servers, others)
	}
	if servers, others := resolvers([]string{none, stub}); servers != nil || others != nil {
		t.Errorf("a loopback resolver is offered: %v %q", servers, others)
	}
}
