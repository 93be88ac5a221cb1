package network

import (
	"errors"
	"fmt"
	"hash/fnv"
	"sync"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// remover removes interfaces, those that are to go at the same time with one
// call. Each call waits for all processors to have left the interface (20 ms, measured), with the
// kernel's lock of all interfaces held: forty, one by one, kept everybody else waiting for half a second.
type remover struct {
	group uint32 // of the kernel; only what is to be removed at once is ever put into it

	mu      sync.Mutex
	waiting []removal
	working bool
}

type removal struct {
	name string
	done chan<- error
}

func newRemover(n naming) *remover {
	h := fnv.New32a()
	_, _ = h.Write([]byte(n.table()))
	return &remover{group: 0x6d<<24 | h.Sum32()>>8}
}

// remove returns when the interfaces are gone. One that is not there is fine.
func (r *remover) remove(names ...string) error {
	done := make(chan error, len(names))
	r.mu.Lock()
	for _, name := range names {
		r.waiting = append(r.waiting, removal{name, done})
	}
	if !r.working && len(names) > 0 {
		r.working = true
		go r.work()
	}
	r.mu.Unlock()
	var errs []error
	for range names {
		errs = append(errs, <-done)
	}
	return errors.Join(errs...)
}

// work ends when nothing waits: what comes while a call runs goes together in the next one.
func (r *remover) work() {
	for {
		r.mu.Lock()
		batch := r.waiting
		r.waiting = nil
		r.working = len(batch) > 0
		r.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		if len(batch) > 1 {
			r.together(batch)
		}
		// What the call for all did not remove (an old kernel, a name that came again) is removed by its name.
		for _, b := range batch {
			b.done <- deleteLink(b.name)
		}
	}
}

func (r *remover) together(batch []removal) {
	for _, b := range batch {
		req := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
		req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
		req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(b.name)))
		req.AddData(nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(r.group)))
		_, _ = req.Execute(unix.NETLINK_ROUTE, 0)
	}
	req := nl.NewNetlinkRequest(unix.RTM_DELLINK, unix.NLM_F_ACK)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(r.group)))
	_, _ = req.Execute(unix.NETLINK_ROUTE, 0)
}

// deleteLink removes an interface, and with it its peer and its routes. One that is not there is fine.
func deleteLink(name string) error {
	req := nl.NewNetlinkRequest(unix.RTM_DELLINK, unix.NLM_F_ACK)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove %s: %w", name, err)
	}
	return nil
}
