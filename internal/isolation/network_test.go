package isolation

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/network"
)

// metadata is where clouds tell a machine its secrets.
const metadata = "169.254.169.254"

// world is what the node can reach, in the tests' own network namespace.
type world struct {
	// metadata, node and abstract are addresses that answer the node itself.
	metadata, node, abstract string
}

// makeWorld gives the node a metadata address, a service of its own and one on an abstract name.
func makeWorld(t *testing.T) *world {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		t.Fatalf("loopback: %v", err)
	}
	if address, err := netlink.ParseAddr(metadata + "/32"); err != nil {
		t.Fatal(err)
	} else if err := netlink.AddrReplace(lo, address); err != nil {
		t.Fatalf("metadata address: %v", err)
	}
	w := &world{abstract: fmt.Sprint("muster-probe-", os.Getpid())}
	listen := func(kind, at string) string {
		l, err := net.Listen(kind, at)
		if err != nil {
			t.Fatalf("listen on %s: %v", at, err)
		}
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_ = c.Close()
			}
		}()
		return l.Addr().String()
	}
	w.metadata = listen("tcp4", metadata+":0")
	_, w.node, _ = net.SplitHostPort(listen("tcp4", "0.0.0.0:0"))
	listen("unix", "@"+w.abstract)
	return w
}

// probe runs some attempts in a sandbox with this network.
func (n *node) probe(net *contract.Network, facts []string, attempts ...string) {
	n.Helper()
	c := n.config(append([]string{"/probe", "each"}, attempts...)...)
	c.Container.Network = net
	c.Env = append(append(c.Env, n.facts()...), facts...)
	s := n.start(c)
	n.wait(s)
	check(n.T, attempts, output(n, s, "stdout"), output(n, s, "stderr"))
}

func TestNetworkNone(t *testing.T) {
	everywhere(t, func(n *node) {
		w := makeWorld(n.T)
		n.probe(&contract.Network{}, []string{"PROBE_FORBIDDEN=" + w.metadata + " 127.0.0.1:" + w.node, "PROBE_ABSTRACT=" + w.abstract},
			"network-forbidden", "network-neighbours", "sockets-raw", "network-settings")
		out, _ := n.sh(n.config(), "ls /sys/class/net; cat /proc/net/dev | wc -l")
		if out != "lo\n3\n" {
			n.Errorf("interfaces: %q", out)
		}
	})
}

// What docs/isolation.md says of network host: it is the node's.
func TestNetworkHost(t *testing.T) {
	everywhere(t, func(n *node) {
		w := makeWorld(n.T)
		n.probe(nil, []string{"PROBE_ALLOWED=" + w.metadata + " 127.0.0.1:" + w.node},
			"network-allowed", "sockets-raw", "sockets-of-the-machine", "network-settings", "sys-write", "kernel-settings")
	})
}

func TestNetworkBridge(t *testing.T) {
	everywhere(t, func(n *node) {
		w := makeWorld(n.T)
		pool, err := network.New(network.Config{Dir: filepath.Join(n.root, "network"), Name: "iso", Spare: -1, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			n.Fatal(err)
		}
		if err := pool.Check(n.Context()); err != nil {
			n.Skipf("no networks here: %v", err)
		}
		if err := pool.Restore(n.Context(), nil); err != nil {
			n.Fatal(err)
		}
		n.Cleanup(func() {
			if err := pool.RemoveAll(context.Background()); err != nil {
				n.Error(err)
			}
		})
		take := func(id string, ports ...int) (*contract.Network, string) {
			net, err := pool.Take(n.Context(), id, network.Spec{Mode: muster.NetworkBridge, Ports: ports})
			if err != nil {
				n.Fatal(err)
			}
			return &contract.Network{Namespace: net.Path, DNS: net.DNS}, net.IP.String()
		}
		served, address := take("served", 7001)
		c := n.config("sh", "-c", "httpd -p 7001 -h /; httpd -p 7002 -h /; while ! wget -q -O /tmp/1 http://127.0.0.1:7001/etc/group || ! wget -q -O /tmp/2 http://127.0.0.1:7002/etc/group; do sleep 0.05; done; echo serves; sleep 600")
		c.Container.Network = served
		s := n.start(c)
		n.until("the neighbour serves", func() bool { return strings.Contains(output(n, s, "stdout"), "serves") })

		own, _ := take("own")
		gateway := address[:strings.LastIndexByte(address, '.')] + ".1"
		forbidden := []string{w.metadata, metadata + ":80", gateway + ":" + w.node, address + ":7002", "127.0.0.1:" + w.node}
		n.probe(own, []string{"PROBE_FORBIDDEN=" + strings.Join(forbidden, " "), "PROBE_ALLOWED=" + address + ":7001", "PROBE_ABSTRACT=" + w.abstract},
			"network-forbidden", "network-allowed", "network-neighbours", "sockets-raw", "sockets-of-the-machine", "network-settings")
	})
}
