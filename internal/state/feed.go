package state

import (
	"cmp"
	"context"
	"math"
	"sort"
	"sync"

	"github.com/musterhq/muster"
)

// Change is one row before and after. Exactly one of the nouns is set: both
// sides nil never; Before nil: new; After nil: purged.
type Change struct {
	Index uint64 // log index; several changes may share one
	Part  int    // which of them
	At    muster.Time
	// Verb is noun.change, as "alloc.running"; the type of the API's event.
	Verb Verb

	JobBefore, Job     *Job
	AllocBefore, Alloc *Alloc
	NodeBefore, Node   *Node
	ClaimBefore, Claim *Claim
	// Breaker of a pool, and Limits of a namespace, after the change.
	Breaker *Breaker
	Limits  *NamespaceLimits
	// Image that was loaded or removed.
	Image *LoadedImage
	// Config: pools or offerings changed, or what a pool's breaker lets pass.
	Config bool
}

// Position is a place in the feed: just after one change.
type Position struct {
	Index uint64
	Part  int
}

// AfterIndex is the position after every change of the entry at index: where a
// reader of a snapshot of that index goes on.
func AfterIndex(index uint64) Position { return Position{index, math.MaxInt} }

// Position is the place just after the change.
func (c *Change) Position() Position { return Position{c.Index, c.Part} }

// Compare orders positions.
func (p Position) Compare(o Position) int {
	return cmp.Or(cmp.Compare(p.Index, o.Index), cmp.Compare(p.Part, o.Part))
}

// Feed is a bounded ring of the newest changes. Readers resume by log index; a
// reader that asks for what has fallen out is told so and takes a snapshot.
type Feed struct {
	mu    sync.Mutex
	ring  []Change
	first uint64 // sequence number of the oldest change kept
	next  uint64 // sequence number of the next change
	// floor is the position of the newest change that is not kept any more;
	// last is the newest index applied.
	floor Position
	last  uint64
	wake  chan struct{}
	// topics are those that somebody follows.
	topics map[Topic]*topicLog
}

func newFeed(size int) *Feed {
	return &Feed{ring: make([]Change, max(size, 16)), wake: make(chan struct{})}
}

func (f *Feed) add(index uint64, changes []Change) {
	f.mu.Lock()
	n := uint64(len(f.ring))
	for _, c := range changes {
		if f.next-f.first == n {
			f.floor = f.ring[f.first%n].Position()
			f.first++
		}
		f.ring[f.next%n] = c
		f.note(&f.ring[f.next%n], f.next)
		f.next++
	}
	f.last = index
	wake := f.wake
	f.wake = make(chan struct{})
	f.mu.Unlock()
	close(wake)
}

// reset forgets everything: the state was replaced as a whole, at index.
func (f *Feed) reset(index uint64) {
	f.mu.Lock()
	clear(f.ring)
	f.first = f.next
	f.floor, f.last = AfterIndex(index), index
	f.resetTopics(index)
	wake := f.wake
	f.wake = make(chan struct{})
	f.mu.Unlock()
	close(wake)
}

// After returns up to limit changes that come after a position, oldest first,
// and the newest index applied: with fewer than limit changes, everything up to it has been seen.
// A fault of kind too-old says that some have fallen out of the ring:
// take a snapshot and go on from its index.
func (f *Feed) After(p Position, limit int) ([]Change, uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p.Compare(f.floor) < 0 {
		return nil, f.last, f.tooOld(p)
	}
	n := uint64(len(f.ring))
	at := sort.Search(int(f.next-f.first), func(i int) bool {
		return f.ring[(f.first+uint64(i))%n].Position().Compare(p) > 0
	})
	var out []Change
	for seq := f.first + uint64(at); seq < f.next && len(out) < limit; seq++ {
		out = append(out, f.ring[seq%n])
	}
	return out, f.last, nil
}

func (f *Feed) tooOld(p Position) error {
	return muster.Faultf(muster.FaultTooOld,
		"changes after index %d are no longer kept (oldest kept: after %d); list again and continue from the list's index", p.Index, f.floor.Index)
}

// Wait blocks until an entry after index was applied, or ctx ends.
func (f *Feed) Wait(ctx context.Context, index uint64) error {
	for {
		f.mu.Lock()
		last, wake := f.last, f.wake
		f.mu.Unlock()
		if last > index {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-wake:
		}
	}
}

// followBatch bounds how many changes Follow hands on at once.
const followBatch = 1024

// Follow hands the changes after a position to take, oldest first and some at a time, until ctx ends. When some have fallen
// out of the ring unseen, anew takes a snapshot instead, and says where to go on. Nothing is waited for while more of an
// entry is there: it may be the last one for a long time.
func (f *Feed) Follow(ctx context.Context, pos Position, take func([]Change), anew func() Position) {
	for ctx.Err() == nil {
		changes, last, err := f.After(pos, followBatch)
		switch {
		case err != nil:
			pos = anew()
			last = pos.Index
		case len(changes) == followBatch:
			take(changes)
			pos = changes[followBatch-1].Position()
			continue
		default:
			if len(changes) > 0 {
				take(changes)
			}
			pos = AfterIndex(last)
		}
		if f.Wait(ctx, last) != nil {
			return
		}
	}
}

// Last is the newest index applied.
func (f *Feed) Last() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last
}

// Oldest is the position from which all changes are kept at this moment.
func (f *Feed) Oldest() Position {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.floor
}
