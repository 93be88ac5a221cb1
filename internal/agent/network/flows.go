package network

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

const (
	// mostFlows is how many connections, as the kernel tracks them, one sandbox may have; fewer where the table is small.
	mostFlows = 4096
	// flowShare: at least so many sandboxes together fill the table of the node.
	flowShare = 64
	leastFlow = 256
)

// flowLimit is how many connections one sandbox may have, by the size of the node's table of tracked ones: who fills it cuts off
// the node itself, whose connections are in the same one.
func flowLimit() uint32 {
	b, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_max")
	if err != nil {
		return mostFlows
	}
	most, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || most <= 0 {
		return mostFlows
	}
	return uint32(max(leastFlow, min(mostFlows, most/flowShare)))
}

// limitFlows bounds the connections of each sandbox, in the chain that new ones pass. It is a transaction of its own: kernels
// without nft_connlimit have all other rules.
func (r rules) limitFlows(most uint32) error {
	err := r.transact(func(c *nftables.Conn) error {
		set := &nftables.Set{Table: r.table(), ID: 6, Name: setFlows, KeyType: nftables.TypeIPAddr, Dynamic: true, Size: 1 << 16}
		if err := c.AddSet(set, nil); err != nil {
			return err
		}
		w := writer{conn: c, table: r.table()}
		count := &expr.Connlimit{Count: most, Flags: expr.NFT_CONNLIMIT_F_INV}
		w.rule(chainFlows, source(), one(&expr.Dynset{SrcRegKey: 1, SetName: setFlows, SetID: 6, Operation: uint32(unix.NFT_DYNSET_OP_ADD), Exprs: []expr.Any{count}}),
			verdict(expr.VerdictGoto, chainRefuse))
		return nil
	})
	if err != nil {
		return fmt.Errorf("bound the connections of sandboxes in the nftables table %s: %w", r.table().Name, err)
	}
	return nil
}

// flows is how many connections a sandbox of this pool may have.
func (p *Pool) flows() uint32 {
	if p.config.Flows > 0 {
		return uint32(p.config.Flows)
	}
	return flowLimit()
}
