package agent

import (
	"log/slog"
	"slices"
	"sync"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/wait"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// reporter knows the readers of reports with what each has not been told, and what is to be told of
// the node as a whole. Its mutex is the innermost: an allocation may hold its own meanwhile.
type reporter struct {
	log *slog.Logger

	mu       sync.Mutex
	readers  map[*reader]struct{}
	used     wire.Usage
	freeDisk int64
	// condition is what a look at the node said last; atHand are its images, atHandGen how often
	// they changed.
	condition wire.Condition
	atHand    []string
	atHandGen int
}

// reader is one stream of reports on its way. It keeps which allocations changed, not how: a slow
// reader costs no more than one entry for each.
type reader struct {
	wake chan struct{}

	// guarded by the reporter's mutex
	dirty map[muster.AllocID]struct{}
	beat  bool
	needs bool
	// condition: it changed. images is the newest of atHandGen that it was told.
	condition bool
	images    int
}

func newReporter(log *slog.Logger) *reporter {
	return &reporter{log: log, readers: map[*reader]struct{}{}}
}

func (rd *reader) poke() { wait.Poke(rd.wake) }

// join adds a reader, which leaves with leave.
func (p *reporter) join() *reader {
	rd := &reader{wake: make(chan struct{}, 1), dirty: map[muster.AllocID]struct{}{}}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.readers[rd] = struct{}{}
	return rd
}

func (p *reporter) leave(rd *reader) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.readers, rd)
}

// idle reports whether nobody reads.
func (p *reporter) idle() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.readers) == 0
}

// changed notes that the report of an allocation is another one. Readers are told at once, or
// without now with what comes next.
func (p *reporter) changed(id muster.AllocID, now bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for rd := range p.readers {
		rd.dirty[id] = struct{}{}
		if now {
			rd.poke()
		}
	}
}

// forget drops what readers have not been told of an allocation.
func (p *reporter) forget(id muster.AllocID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for rd := range p.readers {
		delete(rd.dirty, id)
	}
}

// needsAdded tells every reader that the server has to send a digest or a grant.
func (p *reporter) needsAdded() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for rd := range p.readers {
		rd.needs = true
		rd.poke()
	}
}

// beat makes every reader send a heartbeat.
func (p *reporter) beat() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for rd := range p.readers {
		rd.beat = true
		rd.poke()
	}
}

// measured notes what all sandboxes use together, and how much of the disk is free. The next
// heartbeat carries it.
func (p *reporter) measured(used wire.Usage, freeDisk int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used, p.freeDisk = used, freeDisk
}

// noticed notes the condition of the node and its images, and tells readers of another condition at
// once.
func (p *reporter) noticed(now wire.Condition, images []string) {
	p.mu.Lock()
	now.Notice = p.condition.Notice // checks do not know it
	changed := p.setConditionLocked(now)
	if !slices.Equal(p.atHand, images) {
		p.atHand = images
		p.atHandGen++
	}
	p.mu.Unlock()
	if changed {
		p.log.Info("condition", "unready", now.Unready, "broken", now.Broken)
	}
}

// cloudNoticed notes what the cloud says that it will do with the machine, and tells readers at once.
func (p *reporter) cloudNoticed(notice wire.Notice) {
	p.mu.Lock()
	now := p.condition
	now.Notice = notice
	p.setConditionLocked(now)
	p.mu.Unlock()
	p.log.Warn("notice of the cloud", "kind", notice.Kind, "at", notice.At.Std())
}

// setConditionLocked has readers told of another condition. It reports whether it is another one. mu is
// held.
func (p *reporter) setConditionLocked(now wire.Condition) (changed bool) {
	if p.condition == now {
		return false
	}
	p.condition = now
	for rd := range p.readers {
		rd.condition = true
		rd.poke()
	}
	return true
}

// next is a report of what the reader has not been told, without allocations and needs: those are
// named. It is no news if there is nothing to tell.
func (p *reporter) next(rd *reader, whole bool) (r wire.Report, dirty []muster.AllocID, needs, news bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if whole || rd.beat {
		used := p.used
		r.Used, r.FreeDisk = &used, p.freeDisk
	}
	if whole || rd.beat || rd.condition {
		now := p.condition
		r.Condition = &now
	}
	if whole || rd.beat && rd.images != p.atHandGen {
		names := append([]string{}, p.atHand...) // none is not the same as nothing said
		r.Images, rd.images = &names, p.atHandGen
	}
	for id := range rd.dirty {
		dirty = append(dirty, id)
	}
	needs = whole || rd.beat || rd.needs
	news = needs || rd.condition
	clear(rd.dirty)
	rd.beat, rd.needs, rd.condition = false, false, false
	return r, dirty, needs, news
}
