package network

import (
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// writer appends chains and rules to a transaction, or only counts the rules.
type writer struct {
	conn   *nftables.Conn
	table  *nftables.Table
	prefix string // of our interfaces' names
	counts map[string]int
}

func (w writer) rule(chain string, parts ...[]expr.Any) {
	if w.conn == nil {
		w.counts[chain]++
		return
	}
	var exprs []expr.Any
	for _, p := range parts {
		exprs = append(exprs, p...)
	}
	w.conn.AddRule(&nftables.Rule{Table: w.table, Chain: &nftables.Chain{Table: w.table, Name: chain}, Exprs: exprs})
}

func (w writer) chain(name string) {
	if w.conn != nil {
		w.conn.AddChain(&nftables.Chain{Table: w.table, Name: name})
	}
}

// base is a chain that the kernel calls. What it does not refuse passes: the packets of others are not our matter.
func (w writer) base(name string, kind nftables.ChainType, hook *nftables.ChainHook, priority nftables.ChainPriority) {
	if w.conn != nil {
		accept := nftables.ChainPolicyAccept
		w.conn.AddChain(&nftables.Chain{Table: w.table, Name: name, Type: kind, Hooknum: hook, Priority: &priority, Policy: &accept})
	}
}

func (w writer) sets(r rules, node nodeView) error {
	var resolvers, opened []nftables.SetElement
	for _, a := range node.resolvers {
		resolvers = append(resolvers, nftables.SetElement{Key: a.AsSlice()})
	}
	for _, name := range node.opened {
		opened = append(opened, nftables.SetElement{Key: append([]byte(name), make([]byte, unix.IFNAMSIZ-len(name))...)})
	}
	for _, s := range []struct {
		set      *nftables.Set
		elements []nftables.SetElement
	}{
		{r.outbound(), nil},
		{r.ports(), nil},
		{&nftables.Set{Table: w.table, ID: 3, Name: setNever, KeyType: nftables.TypeIPAddr, Interval: true}, intervals(append(never(), r.never...))},
		{&nftables.Set{Table: w.table, ID: 4, Name: setResolvers, KeyType: nftables.TypeIPAddr}, resolvers},
		{&nftables.Set{Table: w.table, ID: 5, Name: setOpened, KeyType: nftables.TypeIFName, KeyByteOrder: binaryutil.NativeEndian}, opened},
	} {
		if err := w.conn.AddSet(s.set, s.elements); err != nil {
			return err
		}
	}
	return nil
}

// leaving: what comes out of a sandbox, wherever it goes.
func (w writer) leaving(subnet netip.Prefix) {
	w.chain(chainRefuse)
	w.rule(chainRefuse, transport(unix.IPPROTO_TCP), one(&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}))
	w.rule(chainRefuse, one(&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED}))

	w.chain(chainFlows) // limitFlows fills it

	w.chain(mapOutbound)
	w.rule(mapOutbound, source(), one(&expr.Lookup{SourceRegister: 1, SetName: mapOutbound, IsDestRegSet: true}))
	w.rule(mapOutbound, verdict(expr.VerdictGoto, chainRefuse))

	w.chain(chainOut)
	w.rule(chainOut, family(expr.CmpOpNeq), verdict(expr.VerdictDrop, ""))
	// The source must be the address that the host's route has at this interface: no per-sandbox rule is needed for it.
	w.rule(chainOut, one(&expr.Fib{Register: 1, FlagSADDR: true, FlagIIF: true, ResultOIF: true}), equal(binaryutil.NativeEndian.PutUint32(0)), verdict(expr.VerdictDrop, ""))
	w.rule(chainOut, state(expr.CtStateBitINVALID), verdict(expr.VerdictDrop, ""))
	w.rule(chainOut, state(expr.CtStateBitESTABLISHED), verdict(expr.VerdictAccept, ""))
	w.rule(chainOut, state(expr.CtStateBitRELATED), transport(unix.IPPROTO_ICMP), verdict(expr.VerdictAccept, ""))
	w.rule(chainOut, verdict(expr.VerdictJump, chainFlows))
	for _, proto := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
		w.rule(chainOut, resolving(proto), verdict(expr.VerdictGoto, mapOutbound))
	}
	w.rule(chainOut, destination(), in(setNever), verdict(expr.VerdictGoto, chainRefuse))
	// Not unicast: the node's own addresses, broadcasts, and those of our subnet that nobody has.
	w.rule(chainOut, one(&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true}),
		one(&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_UNICAST)}), verdict(expr.VerdictGoto, chainRefuse))
	w.rule(chainOut, verdict(expr.VerdictGoto, mapOutbound))

	w.base(chainFrom, nftables.ChainTypeFilter, nftables.ChainHookPrerouting, *nftables.ChainPriorityMangle)
	w.rule(chainFrom, w.cameFrom(), verdict(expr.VerdictGoto, chainOut))

	w.base(chainNat, nftables.ChainTypeNAT, nftables.ChainHookPostrouting, *nftables.ChainPriorityNATSource)
	w.rule(chainNat, sourceWithin(subnet), w.goesElsewhere(), one(&expr.Masq{}))
}

// passing: what the host forwards.
func (w writer) passing() {
	w.chain(chainPassing) // from a sandbox, after others' address translation
	w.rule(chainPassing, family(expr.CmpOpNeq), verdict(expr.VerdictDrop, ""))
	w.rule(chainPassing, state(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED), verdict(expr.VerdictReturn, ""))
	for _, proto := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
		w.rule(chainPassing, resolving(proto), verdict(expr.VerdictReturn, ""))
	}
	w.rule(chainPassing, destination(), in(setNever), verdict(expr.VerdictGoto, chainRefuse))

	w.chain(chainTo)
	w.rule(chainTo, family(expr.CmpOpNeq), verdict(expr.VerdictDrop, ""))
	w.rule(chainTo, state(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED), verdict(expr.VerdictAccept, ""))
	w.rule(chainTo, w.cameFrom(), declared(), verdict(expr.VerdictAccept, ""))
	w.rule(chainTo, verdict(expr.VerdictGoto, chainRefuse))

	w.base(chainForward, nftables.ChainTypeFilter, nftables.ChainHookForward, *nftables.ChainPriorityFilter)
	w.rule(chainForward, w.cameFrom(), verdict(expr.VerdictJump, chainPassing))
	w.rule(chainForward, w.goesTo(), verdict(expr.VerdictGoto, chainTo))
	w.rule(chainForward, one(&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}), in(setOpened),
		one(&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1}), in(setOpened), verdict(expr.VerdictDrop, ""))
}

// arriving: between a sandbox and the node itself.
func (w writer) arriving() {
	w.chain(chainToNode)
	w.rule(chainToNode, family(expr.CmpOpNeq), verdict(expr.VerdictDrop, ""))
	w.rule(chainToNode, state(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED), verdict(expr.VerdictReturn, ""))
	for _, proto := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
		w.rule(chainToNode, resolving(proto), verdict(expr.VerdictReturn, ""))
	}
	w.rule(chainToNode, verdict(expr.VerdictGoto, chainRefuse))
	w.base(chainInput, nftables.ChainTypeFilter, nftables.ChainHookInput, *nftables.ChainPriorityFilter)
	w.rule(chainInput, w.cameFrom(), verdict(expr.VerdictJump, chainToNode))

	const chainFromNode = "from-node"
	w.chain(chainFromNode)
	w.rule(chainFromNode, family(expr.CmpOpNeq), verdict(expr.VerdictDrop, ""))
	w.rule(chainFromNode, state(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED), verdict(expr.VerdictReturn, ""))
	w.rule(chainFromNode, declared(), verdict(expr.VerdictReturn, ""))
	w.rule(chainFromNode, verdict(expr.VerdictGoto, chainRefuse))
	w.base(chainOutput, nftables.ChainTypeFilter, nftables.ChainHookOutput, *nftables.ChainPriorityFilter)
	w.rule(chainOutput, w.goesTo(), verdict(expr.VerdictJump, chainFromNode))
}

func one(e expr.Any) []expr.Any { return []expr.Any{e} }

func equal(data []byte) []expr.Any {
	return one(&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data})
}

// cameFrom and goesTo compare the beginning of the name: that is what a shorter value means.
func (w writer) cameFrom() []expr.Any {
	return append(one(&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}), equal([]byte(w.prefix))...)
}

func (w writer) goesTo() []expr.Any {
	return append(one(&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1}), equal([]byte(w.prefix))...)
}

func (w writer) goesElsewhere() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1}, &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte(w.prefix)}}
}

// family compares the packet's family with IPv4.
func family(op expr.CmpOp) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, &expr.Cmp{Op: op, Register: 1, Data: []byte{unix.NFPROTO_IPV4}}}
}

func transport(proto byte) []expr.Any {
	return append(one(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}), equal([]byte{proto})...)
}

func state(bits uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(bits), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
	}
}

// source and destination put an IPv4 address into the first register. That it is IPv4 has been seen before by
// then; it is said again so that nft lists the rule in words and not in bytes.
func source() []expr.Any {
	return append(family(expr.CmpOpEq), &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4})
}

func destination() []expr.Any {
	return append(family(expr.CmpOpEq), &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4})
}

func sourceWithin(subnet netip.Prefix) []expr.Any {
	if !subnet.IsValid() {
		return nil
	}
	mask := binary.BigEndian.AppendUint32(nil, ^uint32(0)<<(32-subnet.Bits()))
	return append(append(source(), &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: mask, Xor: make([]byte, 4)}), equal(subnet.Addr().AsSlice())...)
}

func in(set string) []expr.Any {
	return one(&expr.Lookup{SourceRegister: 1, SetName: set})
}

// resolving: to a DNS server of the node, and to nothing else of it.
func resolving(proto byte) []expr.Any {
	port := []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{0, 53}},
	}
	return concat(transport(proto), port, destination(), in(setResolvers))
}

// declared: TCP to an address and port of the set. The port goes into the
// register of four bytes that follows the address (NFT_REG32_01).
func declared() []expr.Any {
	return concat(transport(unix.IPPROTO_TCP), family(expr.CmpOpEq), one(&expr.Payload{DestRegister: unix.NFT_REG32_00, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4}),
		one(&expr.Payload{DestRegister: unix.NFT_REG32_01, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}),
		one(&expr.Lookup{SourceRegister: unix.NFT_REG32_00, SetName: setPorts}))
}

func concat(parts ...[]expr.Any) []expr.Any {
	var out []expr.Any
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

func verdict(kind expr.VerdictKind, chain string) []expr.Any {
	return one(&expr.Verdict{Kind: kind, Chain: chain})
}
