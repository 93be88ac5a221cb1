package network

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/musterhq/muster"
)

// told reports percentiles: means say little on a shared machine.
func told(b *testing.B, times []time.Duration) {
	slices.Sort(times)
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	b.ReportMetric(ms(times[len(times)/2]), "ms-p50")
	b.ReportMetric(ms(times[len(times)*99/100]), "ms-p99")
}

// perTake times takes alone; each network is released again outside the measured time.
func perTake(b *testing.B, p *Pool, s Spec, ready func() bool) {
	var times []time.Duration
	for i := range b.N {
		b.StopTimer()
		for ready != nil && !ready() {
			time.Sleep(100 * time.Microsecond)
		}
		id := "bench-" + strconv.Itoa(i)
		b.StartTimer()
		began := time.Now()
		if _, err := p.Take(context.Background(), id, s); err != nil {
			b.Fatal(err)
		}
		times = append(times, time.Since(began))
		b.StopTimer()
		if err := p.Release(context.Background(), id); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	told(b, times)
}

func specs() map[string]Spec {
	return map[string]Spec{
		"open":  bridge(),
		"ports": {Mode: muster.NetworkBridge, Ports: []int{80, 443}},
		"list":  {Mode: muster.NetworkBridge, Egress: prefixes("198.51.100.0/24", "203.0.113.0/24", "10.0.0.0/8")},
	}
}

// BenchmarkTake: a spare one is there, beside so many networks that are in use.
func BenchmarkTake(b *testing.B) {
	for _, others := range []int{0, 100, 500} {
		b.Run(fmt.Sprintf("others=%d", others), func(b *testing.B) {
			p := newPool(b, nil)
			for i := range others {
				s := bridge()
				if i%2 == 0 {
					s.Egress = prefixes("198.51.100.0/24")
				}
				take(b, p, "other-"+strconv.Itoa(i), s)
			}
			run(b, p)
			for name, s := range specs() {
				b.Run(name, func(b *testing.B) { perTake(b, p, s, func() bool { return p.ready() == defaultSpare }) })
			}
		})
	}
}

// BenchmarkTakeCold: it is made while the caller waits. Beside it what the kernel's bare calls take for
// the same: a namespace, a veth pair, address and routes.
func BenchmarkTakeCold(b *testing.B) {
	b.Run("bare", func(b *testing.B) {
		needNode(b)
		var times []time.Duration
		for range b.N {
			began := time.Now()
			bareCalls(b)
			times = append(times, time.Since(began))
			b.StopTimer()
			if err := deleteLink("bench0"); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
		told(b, times)
	})
	b.Run("pool", func(b *testing.B) { perTake(b, newPool(b, func(c *Config) { c.Spare = -1 }), bridge(), nil) })
	b.Run("none", func(b *testing.B) { perTake(b, newPool(b, nil), Spec{Mode: muster.NetworkNone}, nil) })
}

func bareCalls(b *testing.B) {
	var h *netlink.Handle
	var ns *os.File
	err := within(home(), func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		if ns, err = os.Open("/proc/thread-self/ns/net"); err != nil {
			return err
		}
		h, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { h.Close(); _ = ns.Close() }()
	pair := netlink.NewVeth(netlink.LinkAttrs{Name: "bench0", TxQLen: -1})
	pair.PeerName, pair.PeerNamespace = inside, netlink.NsFd(ns.Fd())
	must := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	must(netlink.LinkAdd(pair))
	must(netlink.LinkSetUp(pair))
	eth0, err := h.LinkByName(inside)
	must(err)
	must(h.AddrAdd(eth0, mustAddr("10.200.0.2/24")))
	must(h.LinkSetUp(eth0))
	must(h.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index, Gw: net.IPv4(10, 200, 0, 1)}))
}

// BenchmarkRelease times what a sandbox's end costs.
func BenchmarkRelease(b *testing.B) {
	p := newPool(b, nil)
	var times []time.Duration
	for i := range b.N {
		b.StopTimer()
		id := "bench-" + strconv.Itoa(i)
		take(b, p, id, bridge())
		b.StartTimer()
		began := time.Now()
		if err := p.Release(context.Background(), id); err != nil {
			b.Fatal(err)
		}
		times = append(times, time.Since(began))
	}
	told(b, times)
}
