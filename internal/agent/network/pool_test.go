package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/testwait"
)

// run runs the pool's loop until the test ends or stop is called.
func run(t testing.TB, p *Pool) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func (p *Pool) ready() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.spares)
}

// rulesOf is how many rules a chain has.
func rulesOf(t *testing.T, p *Pool, chain string) int {
	t.Helper()
	c, err := p.rules.conn()
	if err != nil {
		t.Fatal(err)
	}
	found, err := c.GetRules(p.rules.table(), &nftables.Chain{Table: p.rules.table(), Name: chain})
	if err != nil {
		t.Fatal(err)
	}
	return len(found)
}

// elements counts what the table has for single sandboxes.
func elements(t testing.TB, p *Pool) int {
	t.Helper()
	c, err := p.rules.conn()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, s := range []*nftables.Set{p.rules.outbound(), p.rules.ports()} {
		found, err := c.GetSetElements(s)
		if err != nil {
			t.Fatal(err)
		}
		n += len(found)
	}
	sets, err := c.GetSets(p.rules.table())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range sets {
		if strings.HasPrefix(s.Name, "egress-") {
			n++
		}
	}
	chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range chains {
		if strings.HasPrefix(c.Name, "egress-") {
			n++
		}
	}
	return n
}

func recordsIn(t testing.TB, p *Pool) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(p.config.Dir, "mu*"))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func descriptors(t testing.TB) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}

func TestSparesAreKeptReadyAndGoWithRun(t *testing.T) {
	p := newPool(t, func(c *Config) { c.Spare = 2 })
	stop := run(t, p)
	testwait.Until(t, "two spares", func() bool { return p.ready() == 2 })
	for i := range 5 {
		take(t, p, strconv.Itoa(i), bridge())
	}
	testwait.Until(t, "two spares again", func() bool { return p.ready() == 2 })
	stop()
	links, err := ownLinks(p.names)
	if err != nil {
		t.Fatal(err)
	}
	if len(links) != 5 {
		t.Errorf("%d interfaces after Run, five networks are taken", len(links))
	}
}

// A spare is not let out before it is taken.
func TestSpareReachesNothing(t *testing.T) {
	p := newPool(t, func(c *Config) { c.Spare = 1 })
	stop := run(t, p)
	testwait.Until(t, "a spare", func() bool { return p.ready() == 1 })
	listen(t, theWorld.path(), at(farAddr, "80"))
	p.mu.Lock()
	path := p.spares[0].path()
	p.mu.Unlock()
	refused(t, path, at(farAddr, "80"))
	stop()
}

func TestTakesAndReleasesLeaveNothing(t *testing.T) {
	p := newPool(t, nil)
	stop := run(t, p)
	testwait.Until(t, "spares", func() bool { return p.ready() == defaultSpare })
	specs := []Spec{bridge(), {Mode: muster.NetworkNone}, {Mode: muster.NetworkBridge, Ports: []int{80, 80, 443}}, {Mode: muster.NetworkBridge, Egress: prefixes("198.51.100.0/24")}}
	fds := descriptors(t)
	for i := range 200 {
		id := "a-" + strconv.Itoa(i)
		take(t, p, id, specs[i%len(specs)])
		for range 2 {
			if err := p.Release(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		}
	}
	testwait.Until(t, "spares", func() bool { return p.ready() == defaultSpare })
	if now := descriptors(t); now > fds+2 {
		t.Errorf("%d descriptors, before there were %d", now, fds)
	}
	stop()
	if n := elements(t, p); n != 0 {
		t.Errorf("%d elements, sets and chains are left in the table", n)
	}
	if files := recordsIn(t, p); len(files) != 0 {
		t.Errorf("records are left: %q", files)
	}
	if links, err := ownLinks(p.names); err != nil || len(links) != 0 {
		t.Errorf("interfaces are left: %v %v", links, err)
	}
}

func TestManyAtOnce(t *testing.T) {
	p := newPool(t, nil)
	stop := run(t, p)
	listen(t, theWorld.path(), at(farAddr, "80"))
	var all sync.WaitGroup
	for i := range 12 {
		all.Go(func() {
			for j := range 3 {
				id := fmt.Sprintf("a-%d-%d", i, j)
				s := bridge()
				if j == 1 {
					s.Egress, s.Ports = prefixes("198.51.100.0/24"), []int{80}
				}
				n, err := p.Take(t.Context(), id, s)
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := dial(n.Path, at(farAddr, "80")); err != nil {
					t.Errorf("%s: %v", id, err)
				}
				var twice sync.WaitGroup
				for range 2 {
					twice.Go(func() {
						if err := p.Release(t.Context(), id); err != nil {
							t.Error(err)
						}
					})
				}
				twice.Wait()
			}
		})
	}
	all.Wait()
	stop()
	if n := elements(t, p); n != 0 || len(recordsIn(t, p)) != 0 {
		t.Errorf("left: %d elements, records %q", n, recordsIn(t, p))
	}
}

func TestTakeRefuses(t *testing.T) {
	p := newPool(t, nil)
	take(t, p, "a", bridge())
	for what, s := range map[string]Spec{
		"twice":        bridge(),
		"host":         {Mode: muster.NetworkHost},
		"port":         {Mode: muster.NetworkBridge, Ports: []int{0}},
		"prefix":       {Mode: muster.NetworkBridge, Egress: []netip.Prefix{{}}},
		"none, listed": {Mode: muster.NetworkNone, Ports: []int{1}},
	} {
		id := "b"
		if what == "twice" {
			id = "a"
		}
		if _, err := p.Take(t.Context(), id, s); err == nil || !strings.Contains(err.Error(), id) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := p.Release(t.Context(), "never taken"); err != nil {
		t.Error(err)
	}
	fresh, err := New(Config{Name: "x", Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fresh.Take(t.Context(), "a", bridge()); !errors.Is(err, errNotOpen) {
		t.Errorf("before Restore: %v", err)
	}
}

func TestAddressesRunOutAndRest(t *testing.T) {
	subnet := netip.MustParsePrefix("10.80.0.0/29")
	p := newPool(t, func(c *Config) { c.Subnet = subnet })
	var last *Net
	for i := range 5 {
		last = take(t, p, strconv.Itoa(i), bridge())
	}
	if _, err := p.Take(t.Context(), "x", bridge()); err == nil || !strings.Contains(err.Error(), "all 5 addresses of 10.80.0.0/29 are used") {
		t.Errorf("a sixth one: %v", err)
	}
	heard := listenUDP(t, theWorld.path(), at(farAddr, "9"))
	sendUDP(t, last.Path, at(farAddr, "9"), "hello")
	heard()
	flows := func() int {
		found, err := netlink.ConntrackTableList(netlink.ConntrackTable, netlink.FAMILY_V4)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, f := range found {
			if (ofAddresses{last.IP: 0}).MatchConntrackFlow(f) {
				n++
			}
		}
		return n
	}
	if flows() == 0 {
		t.Fatal("the kernel knows no connection of the sandbox: the test is worth nothing")
	}
	if err := p.Release(t.Context(), "4"); err != nil {
		t.Fatal(err)
	}
	again := take(t, p, "again", bridge())
	if again.IP != last.IP {
		t.Fatalf("%s, only %s was free", again.IP, last.IP)
	}
	if n := flows(); n != 0 {
		t.Errorf("the next owner of %s inherits %d connections", last.IP, n)
	}
}

// Somebody flushes all rules of the node, as firewall scripts do.
func TestFlushedRulesAreWrittenAnew(t *testing.T) {
	p := newPool(t, nil)
	run(t, p)
	testwait.Until(t, "spares", func() bool { return p.ready() == defaultSpare })
	n := take(t, p, "a", Spec{Mode: muster.NetworkBridge, Egress: prefixes("198.51.100.0/24"), Ports: []int{80}})
	listen(t, theWorld.path(), at(farAddr, "80"))
	before := elements(t, p)
	for _, what := range []func(c *nftables.Conn){
		func(c *nftables.Conn) { c.FlushRuleset() },
		func(c *nftables.Conn) { c.DelTable(p.rules.table()) },
	} {
		c, err := p.rules.conn()
		if err != nil {
			t.Fatal(err)
		}
		what(c)
		if err := c.Flush(); err != nil {
			t.Fatal(err)
		}
		testwait.Until(t, "the table is whole", func() bool { whole, err := p.rules.intact(); return err == nil && whole })
		if now := elements(t, p); now != before {
			t.Errorf("%d elements of the sandbox, before there were %d", now, before)
		}
		reaches(t, n.Path, at(farAddr, "80"))
		refused(t, n.Path, at(otherAddr, "80"))
	}
	// Only the rules of one chain: seen at the next look.
	c, err := p.rules.conn()
	if err != nil {
		t.Fatal(err)
	}
	c.FlushChain(&nftables.Chain{Table: p.rules.table(), Name: chainFrom})
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	// The pool itself may have seen it first, from an earlier change, and written the rules again.
	if whole, err := p.rules.intact(); err != nil || whole && rulesOf(t, p, chainFrom) == 0 {
		t.Errorf("an emptied chain is not noticed: %v %v", whole, err)
	}
	p.heal(t.Context())
	refused(t, n.Path, at(otherAddr, "80"))
	// A take before anybody has seen that the table is gone.
	if err := p.rules.remove(); err != nil {
		t.Fatal(err)
	}
	late := take(t, p, "late", bridge())
	reaches(t, late.Path, at(farAddr, "80"))
	refused(t, n.Path, at(otherAddr, "80"))
	if err := p.Release(t.Context(), "late"); err != nil {
		t.Fatal(err)
	}
	// A release whose rules are gone already.
	if err := p.rules.remove(); err != nil {
		t.Fatal(err)
	}
	if err := p.Release(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	if n := elements(t, p); n != 0 {
		t.Errorf("%d elements are left", n)
	}
}

func TestChooseSubnet(t *testing.T) {
	first, err := chooseSubnet("test", nil)
	if err != nil {
		t.Fatal(err)
	}
	again, err := chooseSubnet("test", []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")})
	if err != nil || again != first {
		t.Errorf("%s, then %s: %v", first, again, err)
	}
	other, err := chooseSubnet("test", []netip.Prefix{netip.PrefixFrom(first.Addr().Next(), 32)})
	if err != nil || other.Overlaps(first) || !chooseFrom.Overlaps(other) {
		t.Errorf("%s beside %s: %v", other, first, err)
	}
	if s, err := chooseSubnet("test", []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}); err == nil {
		t.Errorf("%s though all of 10.0.0.0/8 is taken", s)
	}
}

func TestTwoAgentsOfOneHost(t *testing.T) {
	a := newPool(t, func(c *Config) { c.Name = "ab" })
	b := newPool(t, func(c *Config) { c.Name = "abc" })
	if a.subnet.Overlaps(b.subnet) {
		t.Fatalf("%s and %s", a.subnet, b.subnet)
	}
	listen(t, theWorld.path(), at(farAddr, "80"))
	one, two := take(t, a, "x", bridge()), take(t, b, "x", Spec{Mode: muster.NetworkBridge, Ports: []int{80}})
	listen(t, two.Path, at("0.0.0.0", "80"))
	reaches(t, one.Path, at(farAddr, "80"))
	reaches(t, two.Path, at(farAddr, "80"))
	refused(t, one.Path, at(two.IP.String(), "80")) // not of the same agent
	if err := a.RemoveAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if on, err := readSetting(forwardingOf("up0")); err != nil || on != "1" {
		t.Errorf("the other agent's way back is closed: %q %v", on, err)
	}
	reaches(t, two.Path, at(farAddr, "80"))
}

func TestForwarding(t *testing.T) {
	needNode(t)
	if on, err := readSetting(forwardingOf("up0")); err != nil || on != "0" {
		t.Fatalf("up0 forwards before: %q %v", on, err)
	}
	p := newPool(t, nil) // newPool checks that it does not afterwards
	if on, err := readSetting(forwardingOf("up0")); err != nil || on != "1" || !slices.Equal(p.node.opened, []string{"up0"}) {
		t.Errorf("up0 forwards: %q %v, switched on: %q", on, err, p.node.opened)
	}
	// The node is not a router for others now: a second network behind the node stays unreached.
	second, h, err := newSpace()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = second.Close() }()
	defer h.Close()
	pair := netlink.NewVeth(netlink.LinkAttrs{Name: "up1", TxQLen: -1})
	pair.PeerName, pair.PeerNamespace = inside, netlink.NsFd(second.Fd())
	if err := netlink.LinkAdd(pair); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = deleteLink("up1") }()
	there, err := h.LinkByName(inside)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(netlink.AddrAdd(pair, mustAddr("192.0.3.1/24")), netlink.LinkSetUp(pair), h.AddrAdd(there, mustAddr("192.0.3.2/24")), h.LinkSetUp(there)); err != nil {
		t.Fatal(err)
	}
	if err := h.RouteAdd(&netlink.Route{LinkIndex: there.Attrs().Index, Gw: netip.MustParseAddr("192.0.3.1").AsSlice()}); err != nil {
		t.Fatal(err)
	}
	if err := p.look(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(p.node.opened, []string{"up0", "up1"}) {
		t.Errorf("switched on: %q", p.node.opened)
	}
	heard := listenUDP(t, theWorld.path(), at(farAddr, "9"))
	path := (&space{ns: second}).path()
	n := take(t, p, "a", bridge())
	sendUDP(t, path, at(farAddr, "9"), "through the node")
	sendUDP(t, n.Path, at(farAddr, "9"), "from a sandbox")
	if got := heard(); got != "from a sandbox" {
		t.Errorf("the node has become a router for others: %q", got)
	}
	// Somebody else makes the whole host a router: then that is so, and stays so.
	if err := os.WriteFile(forwardingOf("all"), []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	if err := p.look(t.Context()); err != nil {
		t.Fatal(err)
	}
	sendUDP(t, path, at(farAddr, "9"), "through the node")
	if got := heard(); got != "through the node" {
		t.Errorf("another's forwarding is held back: %q", got)
	}
	if err := closeForwarding(p.forwardingFile(), false); err != nil {
		t.Fatal(err)
	}
	if on, err := readSetting(forwardingOf("up0")); err != nil || on != "1" {
		t.Errorf("another's forwarding is switched off: %q %v", on, err)
	}
	if err := os.WriteFile(forwardingOf("all"), []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
}

func TestCheckAndProblems(t *testing.T) {
	p := newPool(t, nil)
	if err := p.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	if problems := p.Problems(); len(problems) != 0 {
		t.Errorf("%q", problems)
	}
	// As Docker leaves a host: FORWARD drops by policy.
	c, err := rules{}.conn()
	if err != nil {
		t.Fatal(err)
	}
	table := c.AddTable(&nftables.Table{Name: "filter", Family: nftables.TableFamilyIPv4})
	drop := nftables.ChainPolicyDrop
	chain := c.AddChain(&nftables.Chain{Table: table, Name: "FORWARD", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter, Policy: &drop})
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		c.DelTable(table)
		if err := c.Flush(); err != nil {
			t.Error(err)
		}
	}()
	if err := p.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	if problems := p.Problems(); len(problems) != 1 || !strings.Contains(problems[0], "-i mutest-+ -j ACCEPT") {
		t.Errorf("%q", problems)
	}
	w := writer{conn: c, table: table, prefix: p.names.prefix()}
	w.rule(chain.Name, w.cameFrom(), verdict(1, ""))
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := p.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	if problems := p.Problems(); len(problems) != 0 {
		t.Errorf("told again though the operator has a rule for it: %q", problems)
	}
}
