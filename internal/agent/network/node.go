package network

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/musterhq/muster/internal/atomicfile"
)

// nodeView is what the pool knows of its node.
type nodeView struct {
	mtu       int  // of the way out
	ipv6      bool // the kernel has it
	resolvers []netip.Addr
	search    []string // other lines of the node's resolv.conf
	opened    []string // interfaces that forward only because of us
}

func (v nodeView) equal(o nodeView) bool {
	return v.mtu == o.mtu && v.ipv6 == o.ipv6 && slices.Equal(v.resolvers, o.resolvers) && slices.Equal(v.search, o.search) && slices.Equal(v.opened, o.opened)
}

// Where a node's resolvers are written. systemd-resolved's own listens on a loopback address that
// means something else in a sandbox; the servers behind it are in its other file.
var resolvConfs = [...]string{"/run/systemd/resolve/resolv.conf", "/etc/resolv.conf"}

// lookAtNode sees how the node is and makes it forward what sandboxes need.
func (p *Pool) lookAtNode() (nodeView, error) {
	v := nodeView{mtu: 1500}
	if _, err := os.Stat("/proc/sys/net/ipv6"); err == nil {
		v.ipv6 = true
	}
	if v.resolvers, v.search = resolvers(resolvConfs[:]); len(v.resolvers) == 0 && p.config.Resolver.IsValid() {
		v.resolvers = []netip.Addr{p.config.Resolver}
	}
	links, err := listLinks()
	if err != nil {
		return v, fmt.Errorf("list the node's interfaces: %w", err)
	}
	addrs, err := whole(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_V4) })
	if err != nil {
		return v, fmt.Errorf("list the node's addresses: %w", err)
	}
	hasAddress := map[int]bool{}
	for _, a := range addrs {
		hasAddress[a.LinkIndex] = true
	}
	out, err := defaultLinks()
	if err != nil {
		return v, err
	}
	var ways []string
	for _, l := range links {
		a := l.Attrs()
		if a.Flags&net.FlagLoopback != 0 || strings.HasPrefix(a.Name, p.names.prefix()) {
			continue
		}
		if slices.Contains(out, a.Index) && a.MTU >= 576 {
			v.mtu = min(v.mtu, a.MTU)
		}
		if hasAddress[a.Index] || slices.Contains(out, a.Index) {
			ways = append(ways, a.Name)
		}
	}
	byOthers, _, err := p.rules.neighbours()
	if err != nil {
		return v, err
	}
	v.opened, err = openForwarding(p.forwardingFile(), ways, byOthers)
	return v, err
}

func defaultLinks() ([]int, error) {
	routes, err := whole(func() ([]netlink.Route, error) { return netlink.RouteList(nil, netlink.FAMILY_V4) })
	if err != nil {
		return nil, fmt.Errorf("list the node's routes: %w", err)
	}
	var out []int
	for _, r := range routes {
		if r.Dst != nil && (!r.Dst.IP.IsUnspecified() || !bytes.Equal(r.Dst.Mask, net.CIDRMask(0, 32))) {
			continue
		}
		if r.LinkIndex > 0 {
			out = append(out, r.LinkIndex)
		}
		for _, hop := range r.MultiPath {
			out = append(out, hop.LinkIndex)
		}
	}
	return out, nil
}

// taken are the prefixes that a new subnet must not overlap.
func takenPrefixes() ([]netip.Prefix, error) {
	routes, err := whole(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("list the node's routes: %w", err)
	}
	var out []netip.Prefix
	for _, r := range routes {
		if r.Dst == nil {
			continue
		}
		a, ok := netip.AddrFromSlice(r.Dst.IP)
		if bits, _ := r.Dst.Mask.Size(); ok && bits > 0 {
			out = append(out, netip.PrefixFrom(a.Unmap(), bits))
		}
	}
	return out, nil
}

func (p *Pool) forwardingFile() string { return filepath.Join(p.config.Dir, "forwarding") }

func forwardingOf(link string) string { return "/proc/sys/net/ipv4/conf/" + link + "/forwarding" }

// openForwarding makes interfaces forward, and returns those that do so only
// because of us or of another agent on this host: where the whole host forwards, somebody else wants it so.
// What is switched on is written down first.
func openForwarding(file string, links, byOthers []string) ([]string, error) {
	before, err := readLines(file)
	if err != nil {
		return nil, err
	}
	all, err := readSetting(forwardingOf("all"))
	if err != nil {
		return nil, err
	}
	opened := slices.Concat(before, byOthers)
	var closed []string
	for _, link := range links {
		on, err := readSetting(forwardingOf(link))
		if errors.Is(err, os.ErrNotExist) {
			continue // gone meanwhile, or without IPv4
		}
		if err != nil {
			return nil, err
		}
		if on == "0" {
			closed = append(closed, link)
		}
	}
	opened = append(opened, closed...)
	slices.Sort(opened)
	opened = slices.Compact(opened)
	if !slices.Equal(opened, before) {
		if err := atomicfile.Replace(file, []byte(strings.Join(opened, "\n")+"\n")); err != nil {
			return nil, err
		}
	}
	for _, link := range closed {
		if err := os.WriteFile(forwardingOf(link), []byte("1"), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("make %s forward: %w", link, err)
		}
	}
	if all == "1" {
		return nil, nil
	}
	return opened, nil
}

// closeForwarding takes openForwarding back, unless the whole host forwards by
// now or another agent needs it: then the last of them does it, which has the same names in its own file.
func closeForwarding(file string, others bool) error {
	opened, err := readLines(file)
	if err != nil || len(opened) == 0 || others {
		return err
	}
	if all, err := readSetting(forwardingOf("all")); err != nil || all == "1" {
		return err
	}
	var errs []error
	for _, link := range opened {
		if err := os.WriteFile(forwardingOf(link), []byte("0"), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func readSetting(file string) (string, error) {
	b, err := os.ReadFile(file)
	return strings.TrimSpace(string(b)), err
}

func readLines(file string) ([]string, error) {
	b, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return strings.Fields(string(b)), err
}

// resolvers are the DNS servers that mean the same in a sandbox as on the node,
// from the first file that has any, and the other lines of that file.
func resolvers(files []string) (servers []netip.Addr, others []string) {
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		servers, others = nil, nil
		for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
			words := strings.Fields(s.Text())
			if len(words) < 2 {
				continue
			}
			switch words[0] {
			case "nameserver":
				a, err := netip.ParseAddr(words[1])
				if err == nil && a.Is4() && !a.IsLoopback() && !a.IsUnspecified() && !slices.Contains(servers, a) {
					servers = append(servers, a)
				}
			case "search", "domain", "options":
				others = append(others, strings.Join(words, " "))
			}
		}
		if len(servers) > 0 {
			return servers, others
		}
	}
	return nil, nil
}

// dnsFor are the lines of a sandbox's resolv.conf: servers that its egress list
// leaves out would only make each lookup wait.
func (v nodeView) dnsFor(s Spec) []string {
	var out []string
	for _, r := range v.resolvers {
		if s.Egress == nil || slices.ContainsFunc(s.Egress, func(p netip.Prefix) bool { return p.Contains(r) }) {
			out = append(out, "nameserver "+r.String())
		}
	}
	if out == nil {
		return nil
	}
	return append(out, v.search...)
}

// listTries is for lists that changed while they were read: other agents of the host come and go.
const listTries = 20

// whole asks for a list until it has not changed meanwhile.
func whole[T any](list func() ([]T, error)) (all []T, err error) {
	for range listTries {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}

func listLinks() ([]netlink.Link, error) { return whole(netlink.LinkList) }
