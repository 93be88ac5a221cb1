package network

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
)

// The space that subnets are chosen from, and how large one is: 128 agents of
// 4,093 sandboxes. Nothing well-known lives there: podman begins at 10.88, Kubernetes' services at 10.96,
// Google's networks at 10.128, Docker at 172.17.
var chooseFrom = netip.MustParsePrefix("10.80.0.0/13")

const (
	chosenBits = 20
	// mostIndexes: an interface's name has room for four hexadecimal digits.
	mostIndexes = 1 << 16
	firstIndex  = 2 // 0 is the subnet itself, 1 the gateway
)

// naming makes the names of what one agent owns on its host.
type naming struct{ name string }

func (n naming) prefix() string        { return "mu" + n.name + "-" }
func (n naming) link(index int) string { return fmt.Sprintf("%s%04x", n.prefix(), index) }
func (n naming) table() string         { return "muster-" + n.name }

// index of the interface called link, if it is one of ours.
func (n naming) index(link string) (int, bool) {
	digits, ok := strings.CutPrefix(link, n.prefix())
	if !ok || len(digits) != 4 {
		return 0, false
	}
	i, err := strconv.ParseUint(digits, 16, 16)
	return int(i), err == nil
}

func address(subnet netip.Prefix, index int) netip.Addr {
	b := subnet.Addr().As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(index))
	return netip.AddrFrom4(b)
}

// indexes is how many there are, the broadcast address left out.
func indexes(subnet netip.Prefix) int {
	return min(1<<(32-subnet.Bits())-1, mostIndexes)
}

// hardware is the address of one end of a veth pair: locally administered, and
// of the index, so that no two are equal and nobody has to ask for it.
func hardware(end byte, ip netip.Addr) net.HardwareAddr {
	b := ip.As4()
	return net.HardwareAddr{0x02, end, b[0], b[1], b[2], b[3]}
}

// reserve finds a free index. They are given out in turn, so that an address
// rests as long as possible before another sandbox has it.
func (p *Pool) reserve(ctx context.Context) (int, error) {
	for purged := false; ; purged = true {
		p.mu.Lock()
		if !p.open {
			p.mu.Unlock()
			return 0, errNotOpen
		}
		n := indexes(p.subnet)
		for range n {
			if p.cursor++; p.cursor < firstIndex || p.cursor >= n {
				p.cursor = firstIndex
			}
			if _, used := p.used[p.cursor]; !used {
				p.used[p.cursor] = useHeld
				index := p.cursor
				p.mu.Unlock()
				return index, nil
			}
		}
		subnet := p.subnet
		p.mu.Unlock()
		if purged {
			return 0, fmt.Errorf("network: all %d addresses of %s are used", n-firstIndex, subnet)
		}
		if err := p.purge(ctx); err != nil {
			return 0, err
		}
	}
}

// free gives an index back. A stale one is not used again before purge.
func (p *Pool) free(index int, stale bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if stale {
		p.used[index] = useStale
	} else {
		delete(p.used, index)
	}
}

// purge makes the kernel forget the connections of released addresses: the
// next owner of an address must not get the packets of the one before. For many at
// once, because the whole table has to be read for it.
func (p *Pool) purge(context.Context) error {
	p.mu.Lock()
	stale := map[netip.Addr]int{}
	for index, u := range p.used {
		if u == useStale {
			stale[address(p.subnet, index)] = index
		}
	}
	p.mu.Unlock()
	if len(stale) == 0 {
		return nil
	}
	if _, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, netlink.FAMILY_V4, ofAddresses(stale)); err != nil {
		return fmt.Errorf("forget the connections of %d released addresses: %w", len(stale), err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, index := range stale {
		delete(p.used, index)
	}
	return nil
}

// ofAddresses matches the connections from or to one of them.
type ofAddresses map[netip.Addr]int

// MatchConntrackFlow is how package netlink asks.
func (o ofAddresses) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	for _, ip := range []net.IP{f.Forward.SrcIP, f.Forward.DstIP, f.Reverse.SrcIP, f.Reverse.DstIP} {
		if a, ok := netip.AddrFromSlice(ip); ok {
			if _, ours := o[a.Unmap()]; ours {
				return true
			}
		}
	}
	return false
}

// chooseSubnet is the first one that nothing of the host overlaps, beginning
// with one that depends on name alone.
func chooseSubnet(name string, taken []netip.Prefix) (netip.Prefix, error) {
	n := 1 << (chosenBits - chooseFrom.Bits())
	h := fnv.New32a()
	_, _ = h.Write([]byte(name))
	for i := range n {
		at := (int(h.Sum32()%uint32(n)) + i) % n
		subnet := netip.PrefixFrom(address(chooseFrom, at<<(32-chosenBits)), chosenBits)
		if !slices.ContainsFunc(taken, subnet.Overlaps) {
			return subnet, nil
		}
	}
	return netip.Prefix{}, fmt.Errorf("network: routes of this host overlap all of %s: a subnet for sandboxes must be given", chooseFrom)
}
