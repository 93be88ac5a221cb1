package network

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/musterhq/muster"
)

// The tests run in namespaces of their own, made by running this program once
// more: the machine's network is never touched.
const apart = "MUSTER_NETWORK_TEST_APART"

func TestMain(m *testing.M) {
	switch {
	case os.Geteuid() != 0:
		os.Exit(m.Run()) // what needs namespaces says so and is skipped
	case os.Getenv(apart) == "":
		cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
		cmd.Env = append(os.Environ(), apart+"=1")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS}
		err := cmd.Run()
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			os.Exit(exit.ExitCode())
		}
		if err != nil && !errors.Is(err, unix.EPERM) {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		if err != nil {
			os.Exit(m.Run())
		}
		return
	}
	if len(os.Args) > 1 && os.Args[1] == agentArgument {
		runAgent(os.Args[2:])
	}
	if err := theWorld.build(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// Addresses of the test's world.
const (
	nodeAddr     = "192.0.2.2"    // the node's, on its uplink
	routerAddr   = "192.0.2.1"    // the other end: resolver and router
	farAddr      = "198.51.100.7" // somewhere else
	otherAddr    = "203.0.113.7"  // somewhere else again
	metadataAddr = "169.254.169.254"
	alibabaAddr  = "100.100.100.200"
)

// world is what the node is connected to: one namespace that owns all outer addresses.
type world struct {
	ns   *os.File
	home *os.File // the node's own; /proc/self would be that of the first thread, which a test may have moved
}

var theWorld world

func (w *world) build() error {
	var err error
	if w.home, err = os.Open("/proc/thread-self/ns/net"); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("private mounts: %w", err)
	}
	conf, err := os.CreateTemp("", "resolv")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(conf.Name()) }()
	if _, err := conf.WriteString("nameserver 127.0.0.53\nnameserver " + routerAddr + "\nsearch example.test\n"); err != nil {
		return err
	}
	if err := unix.Mount(conf.Name(), "/etc/resolv.conf", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("a resolv.conf of our own: %w", err)
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	ns, h, err := newSpace()
	if err != nil {
		return err
	}
	defer h.Close()
	w.ns = ns
	pair := netlink.NewVeth(netlink.LinkAttrs{Name: "up0", MTU: 1450, TxQLen: -1})
	pair.PeerName, pair.PeerNamespace = "world", netlink.NsFd(ns.Fd())
	if err := netlink.LinkAdd(pair); err != nil {
		return err
	}
	if err := errors.Join(netlink.AddrAdd(pair, mustAddr(nodeAddr+"/24")), netlink.LinkSetUp(pair)); err != nil {
		return err
	}
	far, err := h.LinkByName("world")
	if err != nil {
		return err
	}
	for _, a := range []string{routerAddr + "/24", farAddr + "/32", otherAddr + "/32", metadataAddr + "/32", alibabaAddr + "/32"} {
		if err := h.AddrAdd(far, mustAddr(a)); err != nil {
			return err
		}
	}
	if err := h.LinkSetUp(far); err != nil {
		return err
	}
	here, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer here.Close()
	if err := sending(context.Background(), here, pair.Index); err != nil {
		return err
	}
	return netlink.RouteAdd(&netlink.Route{LinkIndex: pair.Index, Gw: net.ParseIP(routerAddr)})
}

func mustAddr(s string) *netlink.Addr {
	a, err := netlink.ParseAddr(s)
	if err != nil {
		panic(err)
	}
	return a
}

// within runs f in a namespace; sockets that f makes stay there.
func within(ns string, f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends here
		fd, err := os.Open(ns)
		if err == nil {
			err = unix.Setns(int(fd.Fd()), unix.CLONE_NEWNET)
			_ = fd.Close()
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

func (w *world) path() string { return (&space{ns: w.ns}).path() }

func home() string { return (&space{ns: theWorld.home}).path() }

// listen answers each connection with the address that it came from.
func listen(t *testing.T, ns, at string) {
	t.Helper()
	var l net.Listener
	if err := within(ns, func() (err error) { l, err = net.Listen("tcp4", at); return err }); err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); serving.Wait() })
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, c.RemoteAddr().String())
			_ = c.Close()
		}
	})
}

// dial connects and returns what the other side saw as our address.
func dial(ns, to string) (from string, err error) {
	err = within(ns, func() error {
		// The limit is only there so that a broken test ends; what is refused is refused at once.
		c, err := net.DialTimeout("tcp4", to, 20*time.Second)
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		b, err := io.ReadAll(c)
		from = string(b)
		return err
	})
	return from, err
}

func reaches(t *testing.T, ns, to string) string {
	t.Helper()
	from, err := dial(ns, to)
	if err != nil {
		t.Fatalf("%s should be reached: %v", to, err)
	}
	host, _, _ := net.SplitHostPort(from)
	return host
}

// refused wants a refusal at once, not a time-out.
func refused(t *testing.T, ns, to string) {
	t.Helper()
	from, err := dial(ns, to)
	if err == nil {
		t.Fatalf("%s was reached (as %s), it must not be", to, from)
	}
	for _, e := range []error{unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EACCES} {
		if errors.Is(err, e) {
			return
		}
	}
	t.Fatalf("%s should be refused, but: %v", to, err)
}

func needNode(t testing.TB) {
	t.Helper()
	if theWorld.ns == nil {
		t.Skip("network namespaces need root")
	}
}

// newPool is a pool that was restored with nothing to keep. At the end it is
// taken apart, and nothing of it may be left.
func newPool(t testing.TB, change func(*Config)) *Pool {
	t.Helper()
	needNode(t)
	c := Config{Dir: t.TempDir(), Name: "test", Logger: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&c)
	}
	p, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	before := seen(t)
	if err := p.Restore(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.RemoveAll(context.Background()); err != nil {
			t.Error(err)
		}
		if strings.Contains(strings.Join(before, " "), "table muster-") {
			return // a second agent beside another one: that one looks
		}
		if after := seen(t); !slices.Equal(before, after) {
			t.Errorf("left on the host:\n%s\nbefore:\n%s", strings.Join(after, "\n"), strings.Join(before, "\n"))
		}
	})
	return p
}

func (p *Pool) ids() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []string
	for id := range p.entries {
		out = append(out, id)
	}
	return out
}

// seen lists what the node has: interfaces, routes, rules, forwarding.
func seen(t testing.TB) []string {
	t.Helper()
	var out []string
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		on, _ := readSetting(forwardingOf(l.Attrs().Name))
		out = append(out, "link "+l.Attrs().Name+" forwarding "+on)
	}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{}, netlink.RT_FILTER_TABLE)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range routes {
		out = append(out, "route "+r.String())
	}
	c, err := rules{}.conn()
	if err != nil {
		t.Fatal(err)
	}
	tables, err := c.ListTables()
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range tables {
		out = append(out, "table "+table.Name)
	}
	slices.Sort(out)
	return out
}

func bridge() Spec { return Spec{Mode: muster.NetworkBridge} }

func take(t testing.TB, p *Pool, id string, s Spec) *Net {
	t.Helper()
	n, err := p.Take(t.Context(), id, s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func prefixes(list ...string) []netip.Prefix {
	out := []netip.Prefix{}
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}
