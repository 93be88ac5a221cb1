package network

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
)

// Check says whether this node can do it, by doing all of it in a namespace that
// nobody else has: the host is not touched. Its error is a sentence for operators.
func (p *Pool) Check(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return errors.New("networks of their own for sandboxes need an agent that is root")
	}
	ns, h, err := newSpace()
	if err != nil {
		return fmt.Errorf("this node makes no network namespaces: %w", err)
	}
	defer func() { _ = ns.Close() }()
	defer h.Close()
	pair := netlink.NewVeth(netlink.LinkAttrs{Name: "a", TxQLen: -1})
	pair.PeerName = "b"
	if err := h.LinkAdd(pair); err != nil {
		return fmt.Errorf("this node makes no veth pairs (the kernel needs CONFIG_VETH): %w", err)
	}
	trial := rules{names: p.names, netns: int(ns.Fd())}
	g := grant{index: firstIndex, ip: netip.MustParseAddr("192.0.2.2"), spec: Spec{Egress: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}, Ports: []int{1}}}
	if err := trial.write(netip.MustParsePrefix("192.0.2.0/24"), nodeView{opened: []string{"lo"}}, []grant{g}); err != nil {
		return fmt.Errorf("this node's nftables does not do what is needed (Linux 5.9 or later with fib, nat, reject and conntrack): %w", err)
	}
	var problems []string
	if servers, _ := resolvers(resolvConfs[:]); len(servers) == 0 && !p.config.Resolver.IsValid() {
		problems = append(problems, "this node has no IPv4 DNS server that sandboxes with network bridge could use: they resolve no names")
	}
	if err := trial.limitFlows(p.flows()); err != nil {
		problems = append(problems, fmt.Sprintf("the connections of a sandbox are not bounded, so that one can take all that this node can track (the kernel needs CONFIG_NFT_CONNLIMIT): %v", err))
	}
	problems = append(problems, p.foreignFirewalls(ctx)...)
	p.mu.Lock()
	p.problems = problems
	p.mu.Unlock()
	return nil
}

// Problems are sentences about what does not work here though the rest does, as Check found them.
func (p *Pool) Problems() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.problems...)
}

// foreignFirewalls finds chains of others that drop what they do not know. A packet has to
// pass all chains, so no rule of ours can help; and theirs are not ours to change.
func (p *Pool) foreignFirewalls(ctx context.Context) []string {
	c, err := p.rules.conn()
	if err != nil {
		return nil
	}
	defer func() { _ = c.CloseLasting() }()
	chains, err := c.ListChains()
	if err != nil {
		return []string{fmt.Sprintf("the node's nftables chains cannot be read: %v", err)}
	}
	var out []string
	for _, chain := range chains {
		if chain.Hooknum == nil || *chain.Hooknum != *nftables.ChainHookForward || chain.Policy == nil || *chain.Policy != nftables.ChainPolicyDrop {
			continue
		}
		if chain.Table.Name == p.names.table() || chain.Table.Family == nftables.TableFamilyIPv6 || p.mentioned(c, chain.Table) {
			continue
		}
		out = append(out, fmt.Sprintf("chain %s of this node's nftables table %s drops what it does not know, and with it what sandboxes send: %s",
			chain.Name, chain.Table.Name, p.advice(chain.Table.Name == "filter")))
	}
	return append(out, p.legacyFirewall(ctx)...)
}

func (p *Pool) advice(iptables bool) string {
	if iptables {
		return fmt.Sprintf("add iptables -I FORWARD -i %[1]s+ -j ACCEPT and iptables -I FORWARD -o %[1]s+ -j ACCEPT (with Docker: to DOCKER-USER)", p.names.prefix())
	}
	return fmt.Sprintf("let it accept packets from and to interfaces %s*", p.names.prefix())
}

// mentioned: an operator has added a rule for our interfaces already.
func (p *Pool) mentioned(c *nftables.Conn, t *nftables.Table) bool {
	chains, err := c.ListChainsOfTableFamily(t.Family)
	if err != nil {
		return false
	}
	for _, chain := range chains {
		if chain.Table.Name != t.Name {
			continue
		}
		found, err := c.GetRules(t, chain)
		if err != nil {
			return false
		}
		for _, r := range found {
			for _, e := range r.Exprs {
				if cmp, ok := e.(*expr.Cmp); ok && len(cmp.Data) > 2 && bytes.HasPrefix(append(bytes.TrimRight(cmp.Data, "\x00"), '-'), []byte(p.names.prefix())) {
					return true
				}
			}
		}
	}
	return false
}

// legacyFirewall looks at the older iptables, which nftables does not see. Only if the kernel
// has tables of it: asking would make them.
func (p *Pool) legacyFirewall(ctx context.Context) []string {
	tables, err := os.ReadFile("/proc/net/ip_tables_names")
	if err != nil || !bytes.Contains(tables, []byte("filter")) {
		return nil
	}
	program, err := exec.LookPath("iptables-legacy")
	if err != nil {
		if program, err = exec.LookPath("iptables"); err != nil {
			return nil
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "-w", "2", "-S")
	cmd.WaitDelay = time.Second
	b, err := cmd.Output()
	if err != nil {
		return nil
	}
	if listing := string(b); strings.Contains(listing, "-P FORWARD DROP") && !strings.Contains(listing, " "+p.names.prefix()) {
		return []string{"this node's iptables drop by policy what they do not know of what is forwarded, and with it what sandboxes send: " + p.advice(true)}
	}
	return nil
}
