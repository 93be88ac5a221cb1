package fleet

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/size"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/wait"
)

// The fleet decides by the blocks in its memory, and keeps a copy of them in the log: a new leader,
// or this server after a restart, begins with it. Otherwise each change of the leader would make
// all requests again that a provider has just refused.
//
// The copy follows the memory. Each pass compares the two and proposes the difference, so a
// proposal that fails is made up for by the next pass.

const (
	// keptWhy bounds the text of a kept block, in bytes. The log would cut it at some length too,
	// and then the copy would never be equal to the memory.
	keptWhy = 400
	// failedFor is for how long failed boots in a row are remembered after the last.
	failedFor = time.Hour
	// keptAtOnce bounds the rows of one fact.
	keptAtOnce = 256
)

// keeper brings the fleet's memory of refusals into the log, and back.
type keeper struct {
	f *Fleet
	// turn is taken to bring blocks into the log.
	turn *wait.Turn
}

// delays are the calls, other than creates, that a provider has forbidden until a time. Fleet.mu
// guards it. The fleet's own back-offs are not among them: a new leader may ask once.
type delays map[delayKey]delay

type delayKey struct {
	provider muster.ProviderName
	call     string
}

type delay struct {
	until muster.Time
	kind  muster.FaultKind
	why   string
}

// forbid records that a provider has asked not to be called again for some time, if err says so.
// f.mu is held.
func (d delays) forbid(name muster.ProviderName, call string, err error, now muster.Time) {
	after := afterOf(err)
	if after <= 0 {
		return
	}
	k := delayKey{name, call}
	d[k] = delay{max(d[k].until, now.Add(after)), muster.KindOf(err), err.Error()}
}

// allow records that a call has succeeded. f.mu is held.
func (d delays) allow(name muster.ProviderName, call string) { delete(d, delayKey{name, call}) }

// forbidden returns until when a provider must not be called; 0 if it may be called now.
func (k *keeper) forbidden(name muster.ProviderName, call string) muster.Time {
	f := k.f
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.delays[delayKey{name, call}].until
}

// answered records how a call of a provider as a whole has ended.
func (k *keeper) answered(name muster.ProviderName, call string, err error) {
	f := k.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		f.delays.allow(name, call)
	} else {
		f.delays.forbid(name, call, err, f.cfg.Clock.Now())
	}
}

// recall takes the blocks and delays of earlier leaders from the state. Run calls it before the
// first pass.
func (k *keeper) recall(snap *state.Snapshot) {
	f := k.f
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.cfg.Clock.Now()
	f.blocks.list, f.blocks.fails = nil, nil
	state.ProvidersOf(snap).Blocks(func(b *state.Block) bool {
		switch {
		case b.Forget <= now:
		case b.Call == state.CallCreate:
			f.blocks.recall(b, now)
		default:
			f.delays[delayKey{b.Scope.Provider, b.Call}] = delay{b.Until, b.Kind, b.Why}
		}
		return true
	})
	// A provider that forbade destroys did so for all that it was asked to destroy.
	snap.LiveNodes(func(n *state.Node) bool {
		if until := f.delays[delayKey{n.Offering.Provider, state.CallDestroy}].until; until > now && n.Stage == muster.NodeTerminating {
			f.memory.NotBefore[n.ID] = until
		}
		return true
	})
}

// recall takes over one block of an earlier leader.
func (b *blocks) recall(x *state.Block, now muster.Time) {
	if x.Failed > 0 {
		if b.fails == nil {
			b.fails = map[muster.Scope]failed{}
		}
		b.fails[x.Scope] = failed{x.Failed, x.Forget.Add(-failedFor)}
	}
	if x.Times == 0 {
		return
	}
	until := x.Until
	if x.Kind == muster.FaultAuth || x.Kind == muster.FaultInvalid {
		// Operators correct what is refused so in the configuration, and then reload it or restart
		// the server. One launch tries it at once; the next refusal blocks for longer.
		until = min(until, now)
	}
	b.list = append(b.list, block{size.Block{Scope: x.Scope, Until: until, Why: x.Why, Held: x.Held, Asked: x.Asked}, x.Times, x.Kind})
}

// rows are the blocks and the delays as the log is to have them.
func (k *keeper) rowsLocked(now muster.Time) []state.Block {
	f := k.f
	var out []state.Block
	short := func(why string) string { return strings.ToValidUTF8(why[:min(len(why), keptWhy)], "") }
	row := func(scope muster.Scope, kind muster.FaultKind) *state.Block {
		i := slices.IndexFunc(out, func(b state.Block) bool { return b.Scope == scope && b.Kind == kind })
		if i < 0 {
			i = len(out)
			out = append(out, state.Block{Call: state.CallCreate, Scope: scope, Kind: kind})
		}
		return &out[i]
	}
	for _, x := range f.blocks.list {
		b := row(x.Scope, x.kind)
		b.Until, b.Why, b.Times, b.Held, b.Asked = x.Until, short(x.Why), x.times, x.Held, x.Asked
		b.Forget = x.Until.Add(blockLongest)
	}
	for scope, n := range f.blocks.fails {
		b := row(scope, faultBoot)
		b.Failed, b.Forget = n.times, max(b.Forget, n.last.Add(failedFor))
	}
	for of, d := range f.delays {
		out = append(out, state.Block{Call: of.call, Scope: muster.Scope{Provider: of.provider}, Kind: d.kind, Until: d.until, Why: short(d.why), Times: 1, Forget: d.until})
	}
	return state.KeptBlocks(slices.DeleteFunc(out, func(b state.Block) bool { return b.Forget <= now }))
}

// changesLocked returns the facts that make the blocks in a snapshot equal to the memory.
func (k *keeper) changesLocked(snap *state.Snapshot, now muster.Time) (out []*state.BlocksChanged) {
	if meta := snap.Meta(); meta.LogFormat() < state.FormatProviders {
		return nil
	}
	type key struct {
		call  string
		scope muster.Scope
		kind  muster.FaultKind
	}
	keyOf := func(b *state.Block) key { return key{b.Call, b.Scope, b.Kind} }
	had := map[key]state.Block{}
	state.ProvidersOf(snap).Blocks(func(b *state.Block) bool {
		if b.Forget > now {
			had[keyOf(b)] = *b
		}
		return true
	})
	rows := k.rowsLocked(now)
	if len(rows) == 0 && len(had) == 0 {
		return nil
	}
	var set, ended []state.Block
	for _, b := range rows {
		if had[keyOf(&b)] != b {
			set = append(set, b)
		}
		delete(had, keyOf(&b))
	}
	for _, b := range had {
		ended = append(ended, state.Block{Call: b.Call, Scope: b.Scope, Kind: b.Kind})
	}
	// Both come from maps in part.
	sortBlocks(set)
	sortBlocks(ended)
	for part := range slices.Chunk(set, keptAtOnce) {
		out = append(out, &state.BlocksChanged{Set: part})
	}
	if len(ended) > 0 {
		out = append(out, &state.BlocksChanged{Ended: ended})
	}
	return out
}

func sortBlocks(of []state.Block) {
	slices.SortFunc(of, func(a, b state.Block) int {
		return strings.Compare(a.Call+"\x00"+a.Scope.String()+"\x00"+string(a.Kind), b.Call+"\x00"+b.Scope.String()+"\x00"+string(b.Kind))
	})
}

// keep brings the blocks into the log, if they have changed. One caller at a time does so: of two
// at once the older copy could be committed last. No lock may be held.
func (k *keeper) keep(ctx context.Context) {
	f := k.f
	if k.turn.Take(ctx) != nil {
		return
	}
	defer k.turn.Leave()
	snap := f.cfg.State.Latest()
	f.mu.Lock()
	facts := k.changesLocked(snap, f.cfg.Clock.Now())
	f.mu.Unlock()
	for _, fact := range facts {
		if f.propose(ctx, fact) != nil {
			return
		}
	}
}
