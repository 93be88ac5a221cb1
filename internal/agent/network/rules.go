package network

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	mnl "github.com/mdlayher/netlink"

	"github.com/musterhq/muster/internal/agent/destinations"
)

// rules writes the one table of an agent. Its methods may be called at the same time: the kernel puts transactions in a row.
//
// What a packet of a sandbox meets is a fixed number of rules and hash lookups,
// however many sandboxes there are: their addresses are keys of maps. Where a packet may go is decided
// before others' address translation (a published port of another container must not be a way to the node),
// and where it may not go once more after it.
type rules struct {
	names naming
	never []netip.Prefix // beside those of the function never
	netns int            // descriptor of the namespace to write in, for Check; 0 is the agent's own
	// conns are connections that nobody uses now; nil keeps none. They are kept because closing one waits,
	// with the lock of all transactions held, until what was deleted last is out of use (12 ms, measured).
	conns chan *nftables.Conn
}

const keptConns = 4

// grant is what the table knows of one sandbox.
type grant struct {
	index int
	ip    netip.Addr
	spec  Spec
}

// Names in the table.
const (
	setNever     = "never"     // addresses that no sandbox reaches
	setResolvers = "resolvers" // the node's DNS servers
	setOpened    = "opened"    // interfaces that forward only because we made them
	setPorts     = "ports"     // address . port that may be connected to
	setFlows     = "flows"     // source address : its connections, counted
	mapOutbound  = "outbound"  // source address : where it may go

	chainFrom    = "from-sandbox"
	chainOut     = "out"
	chainRefuse  = "refuse"
	chainFlows   = "count-flows"
	chainForward = "forward"
	chainPassing = "passing"
	chainTo      = "to-sandbox"
	chainInput   = "input"
	chainToNode  = "to-node"
	chainOutput  = "output"
	chainNat     = "masquerade"
)

var linkLocal = netip.MustParsePrefix("169.254.0.0/16")

// never are the addresses of clouds' own services, which know the node's secrets
// (link-local: most of them), and what is no address of a single other host.
func never() []netip.Prefix {
	return append(destinations.Metadata(),
		linkLocal, netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("224.0.0.0/3"))
}

// with runs f with a connection that nobody else uses. After an error it may have answers left unread, and is closed.
func (r rules) with(f func(*nftables.Conn) error) error {
	var c *nftables.Conn
	select {
	case c = <-r.conns:
	default:
		var err error
		if c, err = r.conn(); err != nil {
			return err
		}
	}
	if err := f(c); err != nil {
		return errors.Join(err, c.CloseLasting())
	}
	select {
	case r.conns <- c:
		return nil
	default:
		return c.CloseLasting()
	}
}

// close lets go of the connections that are kept.
func (r rules) close() {
	for {
		select {
		case c := <-r.conns:
			_ = c.CloseLasting()
		default:
			return
		}
	}
}

// transact sends what f adds as one transaction.
func (r rules) transact(f func(*nftables.Conn) error) error {
	return r.with(func(c *nftables.Conn) error {
		if err := f(c); err != nil {
			return err
		}
		return c.Flush()
	})
}

// conn: large buffers, because the kernel answers each message of a table that is written anew.
func (r rules) conn() (*nftables.Conn, error) {
	options := []nftables.ConnOption{nftables.AsLasting(), nftables.WithSockOptions(func(c *mnl.Conn) error {
		if err := c.SetReadBuffer(16 << 20); err != nil {
			return err
		}
		return c.SetWriteBuffer(16 << 20)
	})}
	if r.netns != 0 {
		options = append(options, nftables.WithNetNSFd(r.netns))
	}
	return nftables.New(options...)
}

func (r rules) table() *nftables.Table {
	return &nftables.Table{Name: r.names.table(), Family: nftables.TableFamilyINet}
}

func (r rules) outbound() *nftables.Set {
	return &nftables.Set{Table: r.table(), ID: 1, Name: mapOutbound, IsMap: true, KeyType: nftables.TypeIPAddr, DataType: nftables.TypeVerdict}
}

func (r rules) ports() *nftables.Set {
	key := nftables.TypeIPAddr
	key.Bytes = 8
	key.SetNFTMagic(nftables.TypeIPAddr.GetNFTMagic()<<nftables.SetConcatTypeBits | nftables.TypeInetService.GetNFTMagic())
	return &nftables.Set{Table: r.table(), ID: 2, Name: setPorts, KeyType: key}
}

// egress is the set of one sandbox's list. The ID is set here because the library's own counter is not safe
// for transactions side by side; it has a meaning within one transaction only.
func (r rules) egress(index int) *nftables.Set {
	return &nftables.Set{Table: r.table(), ID: uint32(16 + index), Name: egressName(index), KeyType: nftables.TypeIPAddr, Interval: true}
}

func egressName(index int) string { return fmt.Sprintf("egress-%04x", index) }

// allow lets a sandbox out and others in, as its spec says.
func (r rules) allow(g grant) error {
	if err := r.transact(func(c *nftables.Conn) error { return r.addGrant(c, g) }); err != nil {
		return fmt.Errorf("rules for %s: %w", g.ip, err)
	}
	return nil
}

func (r rules) addGrant(c *nftables.Conn, g grant) error {
	out := nftables.SetElement{Key: g.ip.AsSlice(), VerdictData: &expr.Verdict{Kind: expr.VerdictAccept}}
	if g.spec.Egress != nil {
		set, chain := r.egress(g.index), &nftables.Chain{Table: r.table(), Name: egressName(g.index)}
		if err := c.AddSet(set, intervals(g.spec.Egress)); err != nil {
			return err
		}
		c.AddChain(chain)
		w := writer{conn: c, table: r.table()}
		w.rule(chain.Name, destination(), in(set.Name), verdict(expr.VerdictAccept, ""))
		w.rule(chain.Name, verdict(expr.VerdictGoto, chainRefuse))
		out.VerdictData = &expr.Verdict{Kind: expr.VerdictGoto, Chain: chain.Name}
	}
	if len(g.spec.Ports) > 0 {
		if err := c.SetAddElements(r.ports(), portElements(g)); err != nil {
			return err
		}
	}
	return c.SetAddElements(r.outbound(), []nftables.SetElement{out})
}

// revoke is allow's opposite, all or nothing: fs.ErrNotExist if any of it is not there.
func (r rules) revoke(g grant) error {
	err := r.transact(func(c *nftables.Conn) error {
		if err := c.SetDeleteElements(r.outbound(), []nftables.SetElement{{Key: g.ip.AsSlice()}}); err != nil {
			return err
		}
		if g.spec.Egress != nil {
			c.DelChain(&nftables.Chain{Table: r.table(), Name: egressName(g.index)})
			c.DelSet(r.egress(g.index))
		}
		if len(g.spec.Ports) == 0 {
			return nil
		}
		return c.SetDeleteElements(r.ports(), portElements(g))
	})
	if err != nil {
		return fmt.Errorf("remove the rules for %s: %w", g.ip, err)
	}
	return nil
}

func portElements(g grant) []nftables.SetElement {
	var out []nftables.SetElement
	for _, port := range g.spec.Ports {
		key := binary.BigEndian.AppendUint16(g.ip.AsSlice(), uint16(port))
		out = append(out, nftables.SetElement{Key: append(key, 0, 0)})
	}
	return out
}

// intervals are prefixes as the kernel wants them: half open, in order, none
// touching another. IPv6 is left out: there is none inside.
func intervals(prefixes []netip.Prefix) []nftables.SetElement {
	type span struct{ from, to uint64 } // to is not in it
	var spans []span
	for _, p := range prefixes {
		if !p.Addr().Is4() {
			continue
		}
		b := p.Masked().Addr().As4()
		from := uint64(binary.BigEndian.Uint32(b[:]))
		spans = append(spans, span{from, from + 1<<(32-p.Bits())})
	}
	slices.SortFunc(spans, func(a, b span) int { return int(a.from) - int(b.from) })
	var merged []span
	for _, s := range spans {
		if n := len(merged); n > 0 && s.from <= merged[n-1].to {
			merged[n-1].to = max(merged[n-1].to, s.to)
			continue
		}
		merged = append(merged, s)
	}
	var out []nftables.SetElement
	for _, s := range merged {
		out = append(out, nftables.SetElement{Key: binary.BigEndian.AppendUint32(nil, uint32(s.from))})
		if s.to < 1<<32 {
			out = append(out, nftables.SetElement{Key: binary.BigEndian.AppendUint32(nil, uint32(s.to)), IntervalEnd: true})
		}
	}
	return out
}

// write replaces the whole table in one transaction: no packet sees half of it.
func (r rules) write(subnet netip.Prefix, node nodeView, grants []grant) error {
	err := r.transact(func(c *nftables.Conn) error {
		c.AddTable(r.table())
		c.DelTable(r.table())
		c.AddTable(r.table())
		w := writer{conn: c, table: r.table(), prefix: r.names.prefix()}
		if err := w.sets(r, node); err != nil {
			return err
		}
		w.leaving(subnet)
		w.passing()
		w.arriving()
		for _, g := range grants {
			if err := r.addGrant(c, g); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("write the nftables table %s: %w", r.table().Name, err)
	}
	return nil
}

// remove removes the table; one that is not there is fine.
func (r rules) remove() error {
	err := r.transact(func(c *nftables.Conn) error {
		c.AddTable(r.table())
		c.DelTable(r.table())
		return nil
	})
	if err != nil {
		return fmt.Errorf("remove the nftables table %s: %w", r.table().Name, err)
	}
	return nil
}

// neighbours finds the other agents of this host by their tables: the interfaces that they have made forward, and
// whether there are any.
func (r rules) neighbours() (opened []string, others bool, err error) {
	err = r.with(func(c *nftables.Conn) error {
		tables, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
		if err != nil {
			return fmt.Errorf("list the nftables tables: %w", err)
		}
		for _, t := range tables {
			if !strings.HasPrefix(t.Name, naming{}.table()) || t.Name == r.table().Name {
				continue
			}
			others = true
			found, err := c.GetSetElements(&nftables.Set{Table: t, Name: setOpened})
			if errors.Is(err, os.ErrNotExist) {
				continue // it goes just now, or is no agent's
			}
			if err != nil {
				return fmt.Errorf("read set %s of the nftables table %s: %w", setOpened, t.Name, err)
			}
			for _, e := range found {
				opened = append(opened, string(bytes.TrimRight(e.Key, "\x00")))
			}
		}
		return nil
	})
	return opened, others, err
}

// intact says whether the table is there with all the rules that write puts
// into the chains that do not belong to one sandbox.
func (r rules) intact() (whole bool, err error) {
	err = r.with(func(c *nftables.Conn) error {
		tables, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
		if err != nil {
			return fmt.Errorf("list the nftables tables: %w", err)
		}
		if !slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == r.table().Name }) {
			return nil
		}
		for chain, want := range ruleCounts() {
			found, err := c.GetRules(r.table(), &nftables.Chain{Table: r.table(), Name: chain})
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("read chain %s: %w", chain, err)
			}
			if len(found) != want {
				return nil
			}
		}
		whole = true
		return nil
	})
	return whole, err
}

// ruleCounts counts by writing, so that there is no second list to forget.
func ruleCounts() map[string]int {
	counts := map[string]int{}
	w := writer{counts: counts}
	w.leaving(netip.Prefix{})
	w.passing()
	w.arriving()
	return counts
}
