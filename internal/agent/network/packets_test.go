package network

import (
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/musterhq/muster/internal/testwait"
)

// handle changes a namespace as a test wants it.
type handle struct{ h *netlink.Handle }

func inNamespace(t *testing.T, ns string, f func(*handle)) {
	t.Helper()
	var h *netlink.Handle
	if err := within(ns, func() (err error) { h, err = netlink.NewHandle(unix.NETLINK_ROUTE); return err }); err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	f(&handle{h})
}

func (h *handle) delRoute(t *testing.T, to netip.Prefix) {
	t.Helper()
	if err := h.h.RouteDel(&netlink.Route{Dst: prefixNet(to)}); err != nil {
		// A route of another type has to be named with it.
		if err := h.h.RouteDel(&netlink.Route{Dst: prefixNet(to), Type: unix.RTN_UNREACHABLE}); err != nil {
			t.Fatal(err)
		}
	}
}

func (h *handle) addRoute(t *testing.T, to netip.Prefix, by string) {
	t.Helper()
	if err := h.h.RouteAdd(&netlink.Route{Dst: prefixNet(to), Gw: net.ParseIP(by)}); err != nil {
		t.Fatal(err)
	}
}

// join6 gives an interface an IPv6 address and a neighbour.
func (h *handle) join6(t *testing.T, link, own, other string, hw net.HardwareAddr) {
	t.Helper()
	l, err := h.h.LinkByName(link)
	if err != nil {
		t.Fatal(err)
	}
	addr := mustAddr(own + "/64")
	addr.Flags = unix.IFA_F_NODAD
	if err := h.h.AddrAdd(l, addr); err != nil {
		t.Fatal(err)
	}
	n := &netlink.Neigh{LinkIndex: l.Attrs().Index, Family: unix.AF_INET6, State: netlink.NUD_PERMANENT, IP: net.ParseIP(other), HardwareAddr: hw}
	if err := h.h.NeighSet(n); err != nil {
		t.Fatal(err)
	}
	// A worker of the kernel makes the address ours; until then it is routed like a neighbour's.
	testwait.Until(t, own+" is local", func() bool {
		routes, err := h.h.RouteGet(net.ParseIP(own))
		return err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL
	})
}

// listenUDP returns a function that waits for the next packet.
func listenUDP(t *testing.T, ns, at string) func() string {
	t.Helper()
	var c net.PacketConn
	if err := within(ns, func() (err error) { c, err = net.ListenPacket("udp", at); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return func() string {
		b := make([]byte, 100)
		n, _, err := c.ReadFrom(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:n])
	}
}

func sendUDP(t *testing.T, ns, to, text string) {
	t.Helper()
	if err := within(ns, func() error {
		c, err := net.Dial("udp", to)
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		_, err = c.Write([]byte(text))
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// sendRaw sends a UDP packet with any source.
func sendRaw(t *testing.T, ns string, from, to netip.Addr, port uint16, text string) {
	t.Helper()
	size := 28 + len(text)
	b := make([]byte, 28, size)
	b[0], b[8], b[9] = 0x45, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(b[2:], uint16(size))
	copy(b[12:], from.AsSlice())
	copy(b[16:], to.AsSlice())
	binary.BigEndian.PutUint16(b[20:], 4711)
	binary.BigEndian.PutUint16(b[22:], port)
	binary.BigEndian.PutUint16(b[24:], uint16(8+len(text))) // no checksum: allowed in IPv4
	b = append(b, text...)
	if err := within(ns, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		defer func() { _ = unix.Close(fd) }()
		return os.NewSyscallError("sendto", unix.Sendto(fd, b, 0, &unix.SockaddrInet4{Addr: to.As4()}))
	}); err != nil {
		t.Fatal(err)
	}
}
