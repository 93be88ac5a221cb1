package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	mnl "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/musterhq/muster/internal/atomicfile"
	"github.com/musterhq/muster/internal/wait"
)

// record is what Dir keeps of a sandbox's network, in a file named like its interface.
type record struct {
	ID   string `json:"id"`
	Spec Spec   `json:"spec"`
}

func (p *Pool) recordFile(index int) string {
	return filepath.Join(p.config.Dir, p.names.link(index)+".json")
}

func (p *Pool) record(e *entry) error {
	b, err := json.Marshal(record{e.id, e.spec})
	if err != nil {
		return err
	}
	// What a crash of the machine loses, its networks are lost with.
	return atomicfile.Replace(p.recordFile(e.index), b)
}

func (p *Pool) forget(index int) error {
	if err := os.Remove(p.recordFile(index)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("forget its record: %w", err)
	}
	return nil
}

// Restore sets the node up and makes the pool what the records say: networks of the ids in keep are
// known again, with their rules; all else of an earlier agent is removed. A kept
// one can be released but not entered: its namespace belongs to its sandbox alone. It comes
// before Run and Take, once.
func (p *Pool) Restore(ctx context.Context, keep []string) error {
	if err := os.MkdirAll(p.config.Dir, 0o700); err != nil {
		return fmt.Errorf("network: %w", err)
	}
	subnet, err := p.settleSubnet()
	if err != nil {
		return err
	}
	node, err := p.lookAtNode()
	if err != nil {
		return fmt.Errorf("network: %w", err)
	}
	entries, used, err := p.sift(subnet, keep)
	if err != nil {
		return fmt.Errorf("network: %w", err)
	}
	p.mu.Lock()
	if p.open {
		p.mu.Unlock()
		return errors.New("network: Restore comes once, before anything else")
	}
	// Bare networks were handed out before: they have no part in what is restored.
	for id, e := range p.entries {
		entries[id] = e
	}
	p.subnet, p.node, p.entries, p.used = subnet, node, entries, used
	p.mu.Unlock()
	if err := p.rewrite(); err != nil {
		return err
	}
	if err := p.purge(ctx); err != nil {
		p.log.Warn("old connections could not be forgotten", "error", err)
	}
	p.mu.Lock()
	p.open = true
	p.mu.Unlock()
	p.log.Info("the network for sandboxes is ready", "subnet", subnet, "table", p.names.table(), "kept", len(entries), "forwarding_switched_on", node.opened)
	return nil
}

// sift compares records and interfaces: what both have and keep names stays, the rest is removed.
func (p *Pool) sift(subnet netip.Prefix, keep []string) (map[string]*entry, map[int]use, error) {
	found, err := p.records()
	if err != nil {
		return nil, nil, err
	}
	links, err := ownLinks(p.names)
	if err != nil {
		return nil, nil, err
	}
	entries, used := map[string]*entry{}, map[int]use{}
	var left []string
	for _, index := range links {
		r, ok := found[index]
		if ok && slices.Contains(keep, r.ID) && entries[r.ID] == nil && firstIndex <= index && index < indexes(subnet) {
			entries[r.ID] = &entry{id: r.ID, spec: r.Spec, index: index}
			used[index] = useHeld
			continue
		}
		left = append(left, p.names.link(index))
		used[index] = useStale
	}
	if err := p.links.remove(left...); err != nil {
		return nil, nil, fmt.Errorf("left by an earlier agent: %w", err)
	}
	for index, r := range found {
		if e := entries[r.ID]; e != nil && e.index == index {
			continue
		}
		if slices.Contains(keep, r.ID) && entries[r.ID] == nil {
			p.log.Warn("a sandbox is to be kept, but its network is gone", "sandbox", r.ID, "interface", p.names.link(index))
		}
		used[index] = useStale
		if err := p.forget(index); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", r.ID, err)
		}
	}
	return entries, used, nil
}

// cutTemp is the name of the file that one left by a kill was to become. Earlier versions ended it otherwise.
func cutTemp(name string) (string, bool) {
	if old, ok := strings.CutSuffix(name, ".new"); ok {
		return old, true
	}
	return strings.CutSuffix(name, atomicfile.TempSuffix)
}

// records reads what Dir has, by index. A file that cannot be read is what a killed agent
// was writing: it goes, and its interface with it.
func (p *Pool) records() (map[int]record, error) {
	files, err := os.ReadDir(p.config.Dir)
	if err != nil {
		return nil, err
	}
	out := map[int]record{}
	for _, f := range files {
		file := filepath.Join(p.config.Dir, f.Name())
		if _, temp := cutTemp(f.Name()); temp {
			if err := os.Remove(file); err != nil {
				return nil, err
			}
			continue
		}
		name, ok := strings.CutSuffix(f.Name(), ".json")
		index, ours := p.names.index(name)
		if !ok || !ours {
			continue
		}
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var r record
		if err := json.Unmarshal(b, &r); err != nil || r.ID == "" || r.Spec.check() != nil {
			p.log.Warn("a network's record cannot be read, it is removed", "file", file, "error", err)
			r = record{}
		}
		out[index] = r
	}
	return out, nil
}

func ownLinks(n naming) ([]int, error) {
	links, err := listLinks()
	if err != nil {
		return nil, fmt.Errorf("list the node's interfaces: %w", err)
	}
	var out []int
	for _, l := range links {
		if index, ours := n.index(l.Attrs().Name); ours {
			out = append(out, index)
		}
	}
	return out, nil
}

func (p *Pool) subnetFile() string { return filepath.Join(p.config.Dir, "subnet") }

// settleSubnet finds the subnet: the one of before, else the configured, else a
// free one. The route that leads it nowhere is also the sign that it is taken.
func (p *Pool) settleSubnet() (netip.Prefix, error) {
	lines, err := readLines(p.subnetFile())
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("network: %w", err)
	}
	var before netip.Prefix
	if len(lines) == 1 {
		before, _ = netip.ParsePrefix(lines[0])
	}
	want := p.config.Subnet
	if !want.IsValid() {
		want = before
	}
	if !want.IsValid() {
		taken, err := takenPrefixes()
		if err != nil {
			return netip.Prefix{}, fmt.Errorf("network: %w", err)
		}
		if want, err = chooseSubnet(p.config.Name, taken); err != nil {
			return netip.Prefix{}, err
		}
	}
	if before.IsValid() && before != want {
		// Another subnet was configured: what has an address of the old one cannot stay.
		if err := dismantle(p.names, before); err != nil {
			return netip.Prefix{}, fmt.Errorf("network: leave subnet %s: %w", before, err)
		}
	}
	if before != want {
		if err := atomicfile.Replace(p.subnetFile(), []byte(want.String()+"\n")); err != nil {
			return netip.Prefix{}, fmt.Errorf("network: %w", err)
		}
	}
	nowhere := &netlink.Route{Dst: prefixNet(want), Type: unix.RTN_UNREACHABLE}
	if err := netlink.RouteReplace(nowhere); err != nil {
		return netip.Prefix{}, fmt.Errorf("network: route unreachable %s: %w", want, err)
	}
	return want, nil
}

// dismantle removes interfaces, routes and the table of an agent.
func dismantle(n naming, subnet netip.Prefix) error {
	links, err := ownLinks(n)
	if err != nil {
		return err
	}
	var own []string
	for _, index := range links {
		own = append(own, n.link(index))
	}
	errs := []error{newRemover(n).remove(own...), rules{names: n}.remove()}
	if subnet.IsValid() {
		nowhere := &netlink.Route{Dst: prefixNet(subnet), Type: unix.RTN_UNREACHABLE}
		if err := netlink.RouteDel(nowhere); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("remove the route unreachable %s: %w", subnet, err))
		}
	}
	return errors.Join(errs...)
}

// RemoveAll takes apart all that the agent called name has on this host, whether
// sandboxes use it or not, and the records in dir. For a pool that lives, its own RemoveAll is meant.
func RemoveAll(name, dir string) error {
	p, err := New(Config{Name: name, Dir: dir})
	if err != nil {
		return err
	}
	defer p.rules.close()
	lines, err := readLines(p.subnetFile())
	if err != nil {
		return fmt.Errorf("network: %w", err)
	}
	var subnet netip.Prefix
	if len(lines) == 1 {
		subnet, _ = netip.ParsePrefix(lines[0])
	}
	_, others, err := p.rules.neighbours()
	if err := errors.Join(err, dismantle(p.names, subnet), closeForwarding(p.forwardingFile(), others || err != nil)); err != nil {
		return fmt.Errorf("network of agent %s: %w", name, err)
	}
	files, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("network: %w", err)
	}
	for _, f := range files {
		link, _, _ := strings.Cut(f.Name(), ".")
		_, ours := p.names.index(link)
		if name, _ := cutTemp(f.Name()); ours || name == "subnet" || name == "forwarding" {
			if err := os.Remove(filepath.Join(dir, f.Name())); err != nil && !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("network: %w", err)
			}
		}
	}
	return nil
}

// RemoveAll takes apart all that this pool has on the host, whether sandboxes
// use it or not. Run must have ended; after it the pool is of no use.
func (p *Pool) RemoveAll(ctx context.Context) error {
	p.dropSpares()
	p.mu.Lock()
	var ids []string
	for id := range p.entries {
		ids = append(ids, id)
	}
	p.mu.Unlock()
	errs := make([]error, len(ids)) // one for each, so that no lock is needed
	var all sync.WaitGroup
	for i, id := range ids {
		all.Go(func() { errs[i] = p.Release(ctx, id) })
	}
	all.Wait()
	p.mu.Lock()
	p.open = false
	p.mu.Unlock()
	p.rules.close()
	return errors.Join(errors.Join(errs...), RemoveAll(p.config.Name, p.config.Dir))
}

// rewrite writes the table anew from what the pool knows. Takes and releases go on
// meanwhile; what they did could be lost by it or be there again: then it is done once more.
func (p *Pool) rewrite() error {
	for {
		p.mu.Lock()
		version, subnet, node := p.version, p.subnet, p.node
		var grants []grant
		for _, e := range p.entries {
			if e.index != 0 && !e.going {
				grants = append(grants, grant{index: e.index, ip: address(subnet, e.index), spec: e.spec})
			}
		}
		p.mu.Unlock()
		slices.SortFunc(grants, func(a, b grant) int { return a.index - b.index })
		if err := p.rules.write(subnet, node, grants); err != nil {
			return err
		}
		if err := p.rules.limitFlows(p.flows()); err != nil {
			p.log.Warn("one sandbox can take all connections that this node can track", "error", err)
		}
		p.mu.Lock()
		same := version == p.version
		p.mu.Unlock()
		if same {
			return nil
		}
	}
}

// heal writes the table anew if somebody removed it or a part of it: firewall
// scripts like to flush everything, and without rules nothing is held back.
func (p *Pool) heal(ctx context.Context) {
	whole, err := p.rules.intact()
	if err == nil && whole || ctx.Err() != nil {
		return
	}
	if err == nil {
		err = p.rewrite()
	}
	if err != nil {
		p.log.Error("the firewall rules of sandboxes are damaged and could not be written again", "table", p.names.table(), "error", err)
		return
	}
	p.log.Warn("firewall rules of sandboxes were removed; they are written again", "table", p.names.table())
}

// look sees whether the node has changed, and follows.
func (p *Pool) look(context.Context) error {
	node, err := p.lookAtNode()
	if err != nil {
		return err
	}
	p.mu.Lock()
	same := p.node.equal(node)
	stale := p.spares
	if !same {
		p.node, p.spares = node, nil
		p.version++
	}
	p.mu.Unlock()
	if same {
		return nil
	}
	p.log.Info("the node's network has changed", "resolvers", node.resolvers, "mtu", node.mtu, "forwarding_switched_on", node.opened)
	return errors.Join(p.unmake(stale...), p.rewrite())
}

// watchTables tells when a table of the node is deleted, whosever it is.
func (p *Pool) watchTables(ctx context.Context, deleted chan<- struct{}) {
	c, err := mnl.Dial(unix.NETLINK_NETFILTER, nil)
	if err == nil {
		err = c.JoinGroup(unix.NFNLGRP_NFTABLES)
	}
	if err != nil {
		p.log.Warn("changes of nftables are noticed only now and then", "every", lookEvery, "error", err)
		return
	}
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	for ctx.Err() == nil {
		messages, err := c.Receive()
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			return // closed
		}
		gone := err != nil // some were lost: look
		for _, m := range messages {
			gone = gone || m.Header.Type == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_DELTABLE
		}
		if gone {
			wait.Poke(deleted)
		}
	}
}
