package network

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/musterhq/muster/internal/wait"
)

// inside is the name of a sandbox's interface in its namespace.
const inside = "eth0"

// space is a network namespace, held by a descriptor.
type space struct {
	ns    *os.File
	index int // 0: without a veth pair
}

func (s *space) path() string {
	return "/proc/" + strconv.Itoa(os.Getpid()) + "/fd/" + strconv.Itoa(int(s.ns.Fd()))
}

// wiring says how a namespace is connected.
type wiring struct {
	name        string // of the host's end
	ip, gateway netip.Addr
	mtu         int
	ipv6        bool         // the host's kernel has it
	resolvers   []netip.Addr // of the node; some clouds have theirs among the link-local addresses
}

// pingGroups is the setting of who may send a ping.
const pingGroups = "/proc/sys/net/ipv4/ping_group_range"

// mapped makes a setting fit the user namespace of an ordinary user: the kernel takes no group that is not in it.
func mapped(file, value string) string {
	b, err := os.ReadFile("/proc/self/gid_map")
	if file != pingGroups || err != nil {
		return value
	}
	last := uint64(0)
	for line := range strings.Lines(string(b)) {
		var inside, outside, count uint64
		if _, err := fmt.Sscan(line, &inside, &outside, &count); err == nil {
			last = max(last, inside+count-1)
		}
	}
	if last >= math.MaxInt32 {
		return value // all that there are
	}
	return "0 " + strconv.FormatUint(last, 10)
}

// settings of each namespace. A sandbox's root is no root of the namespace: without
// the first it could not listen on port 80, without the second not send a ping. IPv6 is
// off for the interfaces to come; the loopback keeps its ::1, which programs expect.
var settings = []struct{ file, value string }{
	{"/proc/sys/net/ipv4/ip_unprivileged_port_start", "0"},
	{pingGroups, "0 2147483647"},
	{"/proc/sys/net/ipv6/conf/default/disable_ipv6", "1"},
}

// newSpace makes a namespace with its loopback up, and a handle to work in it.
func newSpace() (*os.File, *netlink.Handle, error) {
	type made struct {
		ns  *os.File
		h   *netlink.Handle
		err error
	}
	done := make(chan made)
	go func() {
		// A namespace belongs to a thread. Where the way back fails, the thread
		// stays locked and ends with this goroutine.
		runtime.LockOSThread()
		ns, h, back, err := enterNew()
		if back {
			runtime.UnlockOSThread()
		}
		done <- made{ns, h, err}
	}()
	m := <-done
	if m.err != nil {
		return nil, nil, m.err
	}
	lo := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Name: "lo", Index: 1}}
	if err := m.h.LinkSetUp(lo); err != nil {
		m.h.Close()
		return nil, nil, errors.Join(fmt.Errorf("loopback up: %w", err), m.ns.Close())
	}
	return m.ns, m.h, nil
}

func enterNew() (ns *os.File, h *netlink.Handle, back bool, err error) {
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, nil, true, err
	}
	defer func() { err = errors.Join(err, home.Close()) }()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, nil, true, fmt.Errorf("make a network namespace: %w", err)
	}
	ns, h, err = furnish()
	if e := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); e != nil {
		return ns, h, false, err // made all the same
	}
	return ns, h, true, err
}

// furnish sets up the namespace that the thread is in.
func furnish() (*os.File, *netlink.Handle, error) {
	for _, s := range settings {
		if err := os.WriteFile(s.file, []byte(mapped(s.file, s.value)), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, nil, err
		}
	}
	ns, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, nil, err
	}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, nil, errors.Join(err, ns.Close())
	}
	return ns, h, nil
}

// bare is a namespace with a loopback and nothing else.
func bare() (*space, error) {
	ns, h, err := newSpace()
	if err != nil {
		return nil, err
	}
	h.Close()
	return &space{ns: ns}, nil
}

// wired is a namespace with a veth pair, address and routes. On an error nothing is left.
func wired(ctx context.Context, w wiring) (*space, error) {
	ns, in, err := newSpace()
	if err != nil {
		return nil, err
	}
	defer in.Close()
	host, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	defer host.Close()
	index, err := w.outside(host, ns)
	if err == nil {
		err = w.within(in)
	}
	if err == nil {
		err = sending(ctx, host, index)
	}
	if err != nil {
		return nil, errors.Join(err, deleteLink(w.name), ns.Close())
	}
	return &space{ns: ns}, nil
}

// outside makes the pair and the host's end of it, and returns that end's index.
func (w wiring) outside(h *netlink.Handle, ns *os.File) (index int, err error) {
	pair := netlink.NewVeth(netlink.LinkAttrs{
		Name: w.name, MTU: w.mtu, TxQLen: -1, HardwareAddr: hardware(0, w.ip),
		// One queue: by default there is one per processor, and a node has many sandboxes.
		NumTxQueues: 1, NumRxQueues: 1,
	})
	pair.PeerName, pair.PeerHardwareAddr, pair.PeerNamespace = inside, hardware(1, w.ip), netlink.NsFd(ns.Fd())
	if err := h.LinkAdd(pair); err != nil {
		return 0, fmt.Errorf("make the veth pair %s: %w", w.name, err)
	}
	if err := quiet(pair.Index, w.ipv6); err != nil {
		return 0, fmt.Errorf("set up %s: %w", w.name, err)
	}
	if err := h.LinkSetUp(pair); err != nil {
		return 0, fmt.Errorf("%s up: %w", w.name, err)
	}
	if err := h.NeighSet(neighbour(pair.Index, w.ip, hardware(1, w.ip))); err != nil {
		return 0, fmt.Errorf("neighbour %s at %s: %w", w.ip, w.name, err)
	}
	to := &netlink.Route{LinkIndex: pair.Index, Scope: netlink.SCOPE_LINK, Dst: single(w.ip)}
	if err := h.RouteReplace(to); err != nil {
		return 0, fmt.Errorf("route to %s: %w", w.ip, err)
	}
	return pair.Index, nil
}

// within sets up the sandbox's end. It never asks for a hardware address: the
// gateway exists only as a neighbour that is written down.
func (w wiring) within(h *netlink.Handle) error {
	eth0, err := h.LinkByName(inside)
	if err != nil {
		return fmt.Errorf("%s of the sandbox: %w", inside, err)
	}
	if err := h.AddrAdd(eth0, &netlink.Addr{IPNet: single(w.ip)}); err != nil {
		return fmt.Errorf("address %s: %w", w.ip, err)
	}
	if err := h.LinkSetUp(eth0); err != nil {
		return fmt.Errorf("%s of the sandbox up: %w", inside, err)
	}
	index := eth0.Attrs().Index
	if err := h.NeighSet(neighbour(index, w.gateway, hardware(0, w.ip))); err != nil {
		return fmt.Errorf("neighbour %s: %w", w.gateway, err)
	}
	out := &netlink.Route{LinkIndex: index, Gw: w.gateway.AsSlice(), Flags: int(netlink.FLAG_ONLINK)}
	if err := h.RouteAdd(out); err != nil {
		return fmt.Errorf("default route by %s: %w", w.gateway, err)
	}
	// A second wall that stands even while somebody flushes the node's rules.
	metadata := &netlink.Route{Dst: prefixNet(linkLocal), Type: unix.RTN_UNREACHABLE}
	if err := h.RouteAdd(metadata); err != nil {
		return fmt.Errorf("no route to %s: %w", linkLocal, err)
	}
	for _, r := range w.resolvers {
		if !linkLocal.Contains(r) {
			continue
		}
		to := &netlink.Route{LinkIndex: index, Gw: w.gateway.AsSlice(), Flags: int(netlink.FLAG_ONLINK), Dst: single(r)}
		if err := h.RouteAdd(to); err != nil {
			return fmt.Errorf("route to the resolver %s: %w", r, err)
		}
	}
	return nil
}

// sendLimit is for a kernel that never lets an interface send; a few milliseconds are usual.
const sendLimit = 5 * time.Second

// sending waits until an interface sends what it is given. The end of a pair that came up first gets its
// carrier when the other one comes up, but the kernel begins to send there later, in a worker, and until then drops
// every packet (QDISC_DROP): a sandbox lost the answer to its first packet, and TCP hid that behind a second's
// retransmission. The worker sets the operational state in the same step. Since Linux 6.8 asking for it does the
// worker's step at once; older ones are asked again.
func sending(ctx context.Context, h *netlink.Handle, index int) error {
	ctx, cancel := context.WithTimeout(ctx, sendLimit)
	defer cancel()
	for delay := 100 * time.Microsecond; ; delay = min(2*delay, 10*time.Millisecond) {
		l, err := h.LinkByIndex(index)
		if err != nil {
			return fmt.Errorf("state of interface %d: %w", index, err)
		}
		if l.Attrs().OperState == netlink.OperUp {
			return nil
		}
		if !wait.For(ctx, delay) {
			return fmt.Errorf("%s does not send yet, it is %s: %w", l.Attrs().Name, l.Attrs().OperState, ctx.Err())
		}
	}
}

// Of the kernel's linux/ip.h.
const (
	confForwarding      = 1
	confAcceptRedirects = 4
	confSendRedirects   = 6
	confReversePath     = 8
	confSourceRoute     = 9
)

// quiet makes the host's end forward, refuse other sources than its own, and neither
// answer ARP nor have an IPv6 address. One message: as files it would be five.
func quiet(index int, ipv6 bool) error {
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index, msg.Flags, msg.Change = int32(index), unix.IFF_NOARP, unix.IFF_NOARP
	req.AddData(msg)
	conf := nl.NewRtAttr(unix.IFLA_INET_CONF|unix.NLA_F_NESTED, nil)
	for _, c := range []struct {
		key   int
		value uint32
	}{{confForwarding, 1}, {confReversePath, 1}, {confSendRedirects, 0}, {confAcceptRedirects, 0}, {confSourceRoute, 0}} {
		conf.AddRtAttr(c.key, nl.Uint32Attr(c.value))
	}
	families := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
	families.AddRtAttr(unix.AF_INET, nil).AddChild(conf)
	if ipv6 {
		families.AddRtAttr(unix.AF_INET6, nil).AddRtAttr(unix.IFLA_INET6_ADDR_GEN_MODE, []byte{nl.IN6_ADDR_GEN_MODE_NONE})
	}
	req.AddData(families)
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

func neighbour(link int, ip netip.Addr, at net.HardwareAddr) *netlink.Neigh {
	return &netlink.Neigh{LinkIndex: link, Family: unix.AF_INET, State: netlink.NUD_PERMANENT, IP: ip.AsSlice(), HardwareAddr: at}
}

func single(ip netip.Addr) *net.IPNet { return prefixNet(netip.PrefixFrom(ip, ip.BitLen())) }

func prefixNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
