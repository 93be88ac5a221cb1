package raftlog

import (
	"context"
	"fmt"
	"sync"
)

// How much one entry of the log gathers, and the largest proposal, which may be
// larger than that and has an entry of its own then.
const (
	MaxProposal       = 8 << 20
	maxEntryBytes     = 4 << 20
	maxEntryProposals = 4096
)

// item is one waiting proposal, or a barrier: something that only wants to
// know that everything before it was applied.
type item struct {
	data    []byte
	barrier bool
	gone    bool // withdrawn before the batch was sealed
	value   any
}

// batch becomes one entry of the log.
type batch struct {
	items  []item // appended to under the gatherer's mu until sealed
	bytes  int
	sealed bool
	over   bool // answered

	// done is closed when the fields below and the items' values are final.
	done        chan struct{}
	index, term uint64
	err         error
}

// deserted says that everything in b was withdrawn.
func (b *batch) deserted() bool {
	for i := range b.items {
		if !b.items[i].gone {
			return false
		}
	}
	return true
}

// proposals are the bytes to commit, without barriers and what was withdrawn.
func (b *batch) proposals() [][]byte {
	out := make([][]byte, 0, len(b.items))
	for i := range b.items {
		if it := &b.items[i]; !it.barrier && !it.gone {
			out = append(out, it.data)
		}
	}
	return out
}

// gatherer collects proposals into batches while the disk is busy with the
// ones before. All batches in waiting are unsealed; the last one is open.
type gatherer struct {
	mu      sync.Mutex
	more    sync.Cond // waiting is not empty, or stopped is set
	waiting []*batch
	out     *batch // sealed and not yet answered
	stopped error
}

func newGatherer() *gatherer {
	g := &gatherer{}
	g.more.L = &g.mu
	return g
}

// add puts an item into the open batch and says where it is.
func (g *gatherer) add(it item) (*batch, int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stopped != nil {
		return nil, 0, g.stopped
	}
	var b *batch
	if n := len(g.waiting); n > 0 {
		b = g.waiting[n-1]
	}
	if b == nil || b.bytes+len(it.data) > maxEntryBytes || len(b.items) >= maxEntryProposals {
		b = &batch{done: make(chan struct{})}
		g.waiting = append(g.waiting, b)
		g.more.Signal()
	}
	b.items = append(b.items, it)
	b.bytes += len(it.data)
	return b, len(b.items) - 1, nil
}

// withdraw takes an item back; false means that it is too late.
func (g *gatherer) withdraw(b *batch, i int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if b.sealed {
		return false
	}
	b.items[i].gone = true
	b.items[i].data = nil
	return true
}

// next waits for a batch and seals it; nil means that the gatherer stopped.
func (g *gatherer) next() *batch {
	g.mu.Lock()
	defer g.mu.Unlock()
	for len(g.waiting) == 0 {
		if g.stopped != nil {
			return nil
		}
		g.more.Wait()
	}
	b := g.waiting[0]
	g.waiting[0] = nil
	g.waiting = g.waiting[1:]
	b.sealed = true
	g.out = b
	return b
}

// commitResult is what became of a sealed batch.
type commitResult struct {
	index, term uint64
	values      []any // one for each of batch.proposals, if err is nil
	err         error
}

// answer tells everybody who waits for b. The first answer counts.
func (g *gatherer) answer(b *batch, r commitResult) {
	g.mu.Lock()
	first := g.overLocked(b)
	g.mu.Unlock()
	if first {
		b.finish(r)
	}
}

// overLocked makes the caller, if true, the one who finishes b.
func (g *gatherer) overLocked(b *batch) bool {
	if g.out == b {
		g.out = nil
	}
	if b.over {
		return false
	}
	b.over, b.sealed = true, true
	return true
}

// finish is called once, without the gatherer's mu: it wakes as many
// goroutines as the batch has items, and each of them wants that mutex next.
func (b *batch) finish(r commitResult) {
	b.index, b.term, b.err = r.index, r.term, r.err
	k := 0
	for i := range b.items {
		if it := &b.items[i]; r.err == nil && !it.barrier && !it.gone {
			it.value = r.values[k]
			k++
		}
	}
	close(b.done)
}

// stop refuses what comes and what is not sealed yet with err. The sealed batch
// goes on.
func (g *gatherer) stop(err error) {
	g.mu.Lock()
	if g.stopped == nil {
		g.stopped = err
	}
	err = g.stopped
	refused := g.waiting
	for _, b := range refused {
		g.overLocked(b)
	}
	g.waiting = nil
	g.more.Broadcast()
	g.mu.Unlock()
	for _, b := range refused {
		b.finish(commitResult{err: err})
	}
}

// abandon answers the sealed batch too: nobody knows what becomes of it.
func (g *gatherer) abandon(err error) {
	g.stop(err)
	g.mu.Lock()
	b := g.out
	first := b != nil && g.overLocked(b)
	g.mu.Unlock()
	if first {
		b.finish(commitResult{err: ambiguous(err)})
	}
}

// refusal is why nothing is taken while this server does not lead.
func (g *gatherer) refusal() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stopped != nil {
		return g.stopped
	}
	return ErrNotLeader
}

// wait blocks until b is answered or ctx ends.
func (g *gatherer) wait(ctx context.Context, b *batch, i int) (Result, error) {
	select {
	case <-b.done:
	case <-ctx.Done():
		if g.withdraw(b, i) {
			return Result{}, fmt.Errorf("not proposed: %w", context.Cause(ctx))
		}
		select { // the answer may have come meanwhile, and it is worth more
		case <-b.done:
		default:
			return Result{}, ambiguous(context.Cause(ctx))
		}
	}
	if b.err != nil {
		return Result{}, b.err
	}
	r := Result{Index: b.index, Term: b.term, Value: b.items[i].value}
	if err, ok := r.Value.(error); ok {
		return r, err
	}
	return r, nil
}

// Result says where a proposal was committed and what the machine made of it.
type Result struct {
	Index uint64
	Term  uint64
	Value any // the machine's; if it is an error, Propose returns it as well
}

// Propose commits one proposal and waits until the machine has applied it. The
// bytes belong to the log from now on: they must not change, even after an
// error. Many goroutines may call it at once; those that wait together share
// one entry and one fsync.
//
// The error is the machine's own if it made one of this proposal; ErrAmbiguous
// if it is not known whether it was committed; anything else means that it was
// not. Nothing is tried again.
func (l *Log) Propose(ctx context.Context, proposal []byte) (Result, error) {
	return l.propose(ctx, item{data: proposal})
}

// ProposeUser is Propose for what users ask for: refused with ErrDiskLow when
// the free disk is below the low-water mark. The server's own facts (a node is
// gone, an allocation has ended) go on, because they let it clean up.
func (l *Log) ProposeUser(ctx context.Context, proposal []byte) (Result, error) {
	if err := l.disk.refuse(false); err != nil {
		return Result{}, err
	}
	return l.propose(ctx, item{data: proposal})
}

// ProposeFreeing is ProposeUser for what ends work or removes something, which is how users make room: it is
// refused only below an eighth of the mark.
func (l *Log) ProposeFreeing(ctx context.Context, proposal []byte) (Result, error) {
	if err := l.disk.refuse(true); err != nil {
		return Result{}, err
	}
	return l.propose(ctx, item{data: proposal})
}

func (l *Log) propose(ctx context.Context, it item) (Result, error) {
	if len(it.data) > MaxProposal {
		return Result{}, fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, len(it.data), MaxProposal)
	}
	if ctx.Err() != nil {
		return Result{}, fmt.Errorf("not proposed: %w", context.Cause(ctx))
	}
	if err := l.latch.err(); err != nil {
		return Result{}, err
	}
	if !l.lead.leads() {
		return Result{}, l.gather.refusal()
	}
	b, i, err := l.gather.add(it)
	if err != nil {
		return Result{}, err
	}
	return l.gather.wait(ctx, b, i)
}

// Barrier waits until everything that was committed before is applied here. It
// fails with ErrNotLeader on a server that does not lead.
func (l *Log) Barrier(ctx context.Context) error {
	_, err := l.propose(ctx, item{barrier: true})
	return err
}
