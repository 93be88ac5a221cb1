package state

import (
	"cmp"
	"slices"
	"strings"

	"github.com/tidwall/btree"

	"github.com/musterhq/muster"
)

// Calls that a Block is about.
const (
	// CallCreate is the creation of instances.
	CallCreate = "create"
	// CallDestroy is their destruction.
	CallDestroy = "destroy"
	// CallList is a list of instances.
	CallList = "list"
	// CallOffers is a list of offerings.
	CallOffers = "offers"
)

const (
	// MaxBlocks bounds the blocks of all providers. Those that end first are dropped.
	MaxBlocks = 2048
	// maxBlockWhy bounds the text of one, in bytes. Providers answer with whole pages sometimes.
	maxBlockWhy = 1000
)

// FormatProviders is the first format in which the log has what a new leader must know of
// providers: blocks, shelters and the hosts of static providers.
const FormatProviders Format = 7

// Block says that something is not asked of a provider until a time, because the provider has
// refused it. It outlives the leader: a new one must not ask at once for what was refused.
type Block struct {
	// Call is what is not asked: CallCreate and so on.
	Call  string       `cbor:"1,keyasint"`
	Scope muster.Scope `cbor:"2,keyasint"`
	// Kind is the kind of the refusal. Blocks of one scope are kept apart by it: the end of a rate
	// limit says nothing about a quota.
	Kind  muster.FaultKind `cbor:"3,keyasint"`
	Until muster.Time      `cbor:"4,keyasint,omitempty"`
	Why   string           `cbor:"5,keyasint,omitempty"`
	// Times counts refusals in a row. Failed counts instances in a row that did not come into
	// service; such a row may have no Until.
	Times  int `cbor:"6,keyasint,omitempty"`
	Failed int `cbor:"7,keyasint,omitempty"`
	// Held and Asked are about quotas; see size.Block.
	Held  int `cbor:"8,keyasint,omitempty"`
	Asked int `cbor:"9,keyasint,omitempty"`
	// Forget is when the row is dropped: a while after Until, as what has ended without a success
	// since is tried with care.
	Forget muster.Time `cbor:"10,keyasint"`
}

// BlocksChanged sets blocks and ends others. Of Ended only Call, Scope and Kind count.
type BlocksChanged struct {
	Set   []Block `cbor:"1,keyasint,omitempty"`
	Ended []Block `cbor:"2,keyasint,omitempty"`
}

// MaxShelters bounds the instances that are sheltered at a time.
const MaxShelters = 256

// Shelter keeps the instance with a token, which belongs to no node, from being adopted or destroyed
// until a time. The check of a provider sets it before it creates its instance. It outlives the
// leader, and ends by itself: nothing may keep an instance that nobody ends.
type Shelter struct {
	Token muster.Token `cbor:"1,keyasint"`
	Until muster.Time  `cbor:"2,keyasint"`
}

// InstanceSheltered sets until when an instance is sheltered. A time that has passed ends it.
type InstanceSheltered struct {
	Token muster.Token `cbor:"1,keyasint"`
	Until muster.Time  `cbor:"2,keyasint,omitempty"`
}

// providerTables are the trees of what a new leader must know of providers.
type providerTables struct {
	blocks   *btree.BTreeG[*Block]   // by call, kind, scope
	shelters *btree.BTreeG[*Shelter] // by token
}

func newProviderTables() providerTables {
	return providerTables{
		blocks:   tree(compareBlocks),
		shelters: tree(func(a, b *Shelter) int { return compareStrings(a.Token, b.Token) }),
	}
}

func (t *providerTables) copy() providerTables {
	return providerTables{t.blocks.Copy(), t.shelters.Copy()}
}

func compareBlocks(a, b *Block) int {
	return cmp.Or(compareStrings(a.Scope.Provider, b.Scope.Provider), compareStrings(a.Call, b.Call), compareStrings(a.Kind, b.Kind),
		compareStrings(a.Scope.Zone, b.Scope.Zone), compareStrings(a.Scope.Offering, b.Scope.Offering),
		compareStrings(a.Scope.Market, b.Scope.Market), compareStrings(a.Scope.Family, b.Scope.Family))
}

// firstForgotten sorts blocks by when they are dropped.
func firstForgotten(a, b *Block) int {
	return cmp.Or(cmp.Compare(a.Forget, b.Forget), compareBlocks(a, b))
}

// KeptBlocks are those of a list that the state has space for. It changes the order of the list.
func KeptBlocks(list []Block) []Block {
	if len(list) <= MaxBlocks {
		return list
	}
	slices.SortFunc(list, func(a, b Block) int { return firstForgotten(&a, &b) })
	return list[len(list)-MaxBlocks:]
}

func (f *BlocksChanged) apply(s *State, now muster.Time) (any, error) {
	for i := range f.Ended {
		s.t.blocks.Delete(&f.Ended[i])
	}
	for i := range f.Set {
		b := f.Set[i]
		b.Why = strings.ToValidUTF8(b.Why[:min(len(b.Why), maxBlockWhy)], "")
		s.t.blocks.Set(&b)
	}
	// The rows are few, and a fact about them is rare: no index by time is worth its upkeep.
	rows := collect(s.t.blocks, &Block{}, func(*Block) bool { return true })
	slices.SortFunc(rows, firstForgotten)
	for i, b := range rows {
		if b.Forget <= now || len(rows)-i > MaxBlocks {
			s.t.blocks.Delete(b)
		}
	}
	return nil, nil
}

func (f *InstanceSheltered) apply(s *State, now muster.Time) (any, error) {
	for _, b := range collect(s.t.shelters, &Shelter{}, func(*Shelter) bool { return true }) {
		if b.Until <= now || b.Token == f.Token {
			s.t.shelters.Delete(b)
		}
	}
	switch {
	case f.Until <= now:
		return nil, nil
	case f.Token == "":
		return nil, muster.Faultf(muster.FaultInvalid, "an instance without a token cannot be sheltered")
	case s.t.shelters.Len() >= MaxShelters:
		return nil, muster.Faultf(muster.FaultQuota, "%d instances are sheltered, which is the most; wait for a check of a provider to end", MaxShelters)
	}
	s.t.shelters.Set(&Shelter{f.Token, f.Until})
	return nil, nil
}

// Providers is what the state knows of providers beside pools and offerings, as a snapshot has it.
type Providers struct{ t *tables }

// ProvidersOf returns that of a snapshot.
func ProvidersOf(s *Snapshot) Providers { return Providers{&s.t} }

// Blocks iterates over the blocks in a fixed order. Some have ended already.
func (p Providers) Blocks(fn func(*Block) bool) { p.t.blocks.Scan(fn) }

// IsSheltered reports whether the instance with a token is to be left alone at a time.
func (p Providers) IsSheltered(token muster.Token, now muster.Time) bool {
	s, ok := p.t.shelters.Get(&Shelter{Token: token})
	return ok && s.Until > now
}
