package mend

import (
	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

// Stray is an instance that stands behind no node and is to be destroyed.
type Stray struct {
	Instance muster.InstanceID
	Token    muster.Token
	Reason   string
}

// Adoption is an instance of ours that the state does not know.
type Adoption struct {
	// Node is the id from its tags, or empty if another node has it: then one is to be drawn.
	Node     muster.NodeID
	Token    muster.Token
	Pool     muster.PoolName
	Offering muster.Offering
	Instance muster.InstanceID
	// Intent is what an operator wanted of it, as its tags say; empty: run.
	Intent muster.NodeIntent
}

// Reconcile says what a list shows that the state does not account for. The
// snapshot must have been taken after the list was answered: an intent is in the log
// before its instance can be in a list.
func Reconcile(snap *state.Snapshot, provider muster.ProviderName, l *List) (strays []Stray, adopt []Adoption) {
	if len(l.Instances) == 0 {
		return nil, nil
	}
	nodes, others := map[muster.Token]*state.Node{}, map[muster.Token]bool{}
	inUse := map[muster.ProviderName]bool{}
	snap.Pools(func(p *state.Pool) bool {
		inUse[p.Provider] = p.Provider != provider
		return true
	})
	snap.Nodes("", func(n *state.Node) bool {
		if inUse[n.Offering.Provider] {
			others[n.Token] = true
		}
		// A token has two rows where an instance came back after its node was gone: the living one is its.
		if before := nodes[n.Token]; n.Offering.Provider == provider && (before == nil || before.Stage == muster.NodeGone) {
			nodes[n.Token] = n
		}
		return true
	})
	seen := map[muster.Token]muster.InstanceID{}
	for i := range l.Instances {
		in := &l.Instances[i]
		n := nodes[in.Token]
		first, twice := seen[in.Token]
		seen[in.Token] = in.ID
		switch {
		case n == nil && others[in.Token]:
			// Two providers of one account list each other's instances. This one is the other's to mend,
			// as long as a pool uses that one: a provider that got another name has to adopt its own.
		case n == nil && !twice:
			adopt = append(adopt, adoption(snap, provider, in))
		case n == nil:
			// The next list, when the first is adopted, shows which is surplus.
		case n.Stage == muster.NodeGone && in.Intent == muster.NodeHold && !twice:
			// Its tags say that an operator keeps it. That it was taken for gone is no reason to destroy it.
			adopt = append(adopt, adoption(snap, provider, in))
		case n.Stage == muster.NodeGone:
			strays = append(strays, Stray{in.ID, in.Token, "node " + string(n.ID) + " is gone"})
		case n.Instance != "" && n.Instance != in.ID:
			strays = append(strays, Stray{in.ID, in.Token, "node " + string(n.ID) + " has instance " + string(n.Instance)})
		case n.Instance == "" && twice && first != in.ID:
			// One of them is about to become the node's; then the other is surplus.
		}
	}
	return strays, adopt
}

func adoption(snap *state.Snapshot, provider muster.ProviderName, in *Instance) Adoption {
	a := Adoption{Node: in.Node, Token: in.Token, Pool: in.Pool, Instance: in.ID,
		Offering: muster.Offering{Provider: provider, Name: in.Offering, Zone: in.Zone, Market: in.Market}}
	if a.Offering.Market == "" {
		a.Offering.Market = muster.OnDemand
	}
	if in.Intent == muster.NodeHold || in.Intent == muster.NodeDrain {
		a.Intent = in.Intent
	}
	if snap.Node(in.Node) != nil {
		a.Node = ""
	}
	snap.Offerings(func(o *muster.Offering) bool {
		if o.Provider == provider && o.Name == in.Offering && o.Zone == in.Zone && o.Market == a.Offering.Market {
			a.Offering = *o
		}
		return true
	})
	return a
}
