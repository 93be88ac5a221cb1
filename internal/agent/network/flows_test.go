package network

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// S-H7: flows of sandboxes are in the node's own table of connections. One that opened as many as it holds cut off the node.
func TestFlowsOfASandboxAreBounded(t *testing.T) {
	const most, others = 32, 8
	p := newPool(t, func(c *Config) { c.Flows = most })
	a, b := take(t, p, "a", bridge()), take(t, p, "b", bridge())
	var far net.PacketConn
	if err := within(theWorld.path(), func() (err error) {
		far, err = net.ListenPacket("udp4", at(farAddr, "9000"))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = far.Close() }()
	// arrive sends from so many ports, and tells from how many of them something came.
	arrive := func(ns string, flows int) int {
		err := within(ns, func() error {
			for range flows {
				fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
				if err != nil {
					return os.NewSyscallError("socket", err)
				}
				defer func() { _ = unix.Close(fd) }() // until all have sent: each has a port of its own
				to := &unix.SockaddrInet4{Addr: netip.MustParseAddr(farAddr).As4(), Port: 9000}
				if err := unix.Sendto(fd, []byte("x"), 0, to); err != nil && err != unix.EHOSTUNREACH && err != unix.EPERM {
					return os.NewSyscallError("sendto", err)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		from := map[string]bool{}
		for {
			if err := far.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
				t.Fatal(err)
			}
			_, who, err := far.ReadFrom(make([]byte, 1))
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return len(from)
			}
			if err != nil {
				t.Fatal(err)
			}
			from[who.String()] = true
		}
	}
	if got := arrive(a.Path, 4*most); got < most/2 || got > most {
		t.Errorf("%d flows of %d went out, want %d", got, 4*most, most)
	}
	// Its neighbour has its own.
	if got := arrive(b.Path, others); got != others {
		t.Errorf("%d of %d flows of another sandbox went out", got, others)
	}
	listen(t, theWorld.path(), at(farAddr, "80"))
	reaches(t, b.Path, at(farAddr, "80"))
	refused(t, a.Path, at(farAddr, "80"))
}

func TestFlowLimitFollowsTheTable(t *testing.T) {
	if n := flowLimit(); n < leastFlow || n > mostFlows {
		t.Errorf("%d flows", n)
	}
}
