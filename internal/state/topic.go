package state

import (
	"cmp"
	"context"
	"slices"

	"github.com/musterhq/muster"
)

// Topic is a part of the feed that a reader may follow by itself. One field is set; the zero Topic is the whole feed.
// Whoever follows a topic is not woken by changes outside of it, and does not look through them: thousands of clients each
// wait for a job of their own while thousands of entries a second are applied.
type Topic struct {
	// Namespace: its jobs with all that is theirs, and its limits.
	Namespace muster.Namespace
	// Job, or an environment's: with its allocations and claims.
	Job muster.JobKey
	// Node: with the allocations on it.
	Node muster.NodeID
	// Alloc alone.
	Alloc muster.AllocID
	// Config: what comes of the configuration, of providers' offers, and of leaderships.
	Config bool
}

// topics calls on with each topic that a change belongs to.
func (c *Change) topics(on func(Topic)) {
	job := func(k muster.JobKey) {
		on(Topic{Job: k})
		on(Topic{Namespace: k.Namespace})
	}
	switch {
	case c.Config:
		on(Topic{Config: true})
	case c.Job != nil || c.JobBefore != nil:
		job(cmp.Or(c.Job, c.JobBefore).Key)
	case c.Alloc != nil || c.AllocBefore != nil:
		a := cmp.Or(c.Alloc, c.AllocBefore)
		job(a.Run.Key)
		on(Topic{Node: a.Node})
		on(Topic{Alloc: a.ID})
	case c.Node != nil || c.NodeBefore != nil:
		on(Topic{Node: cmp.Or(c.Node, c.NodeBefore).ID})
	case c.Claim != nil || c.ClaimBefore != nil:
		job(cmp.Or(c.Claim, c.ClaimBefore).Env)
	case c.Limits != nil:
		on(Topic{Namespace: c.Limits.Name})
	}
}

// In reports whether a change belongs to a topic.
func (c *Change) In(t Topic) bool {
	in := t == Topic{}
	c.topics(func(o Topic) { in = in || o == t })
	return in
}

// topicKept bounds the changes that are remembered of a topic. A reader that is further behind looks through the feed.
const topicKept = 1024

// topicLog is what the feed remembers of a topic that somebody follows. The feed's lock guards it.
type topicLog struct {
	readers int
	// from: each change of the topic after it is in entries, oldest first.
	from    Position
	entries []topicEntry
	wake    chan struct{}
}

type topicEntry struct {
	at  Position
	seq uint64
}

// note adds a change that has just got a sequence number to the topics that it belongs to.
func (f *Feed) note(c *Change, seq uint64) {
	if len(f.topics) == 0 {
		return
	}
	c.topics(func(t Topic) {
		l := f.topics[t]
		if l == nil {
			return
		}
		if len(l.entries) == topicKept {
			half := topicKept / 2
			l.from = l.entries[half-1].at
			l.entries = slices.Delete(l.entries, 0, half)
		}
		l.entries = append(l.entries, topicEntry{c.Position(), seq})
		l.wakeUp()
	})
}

// wakeUp wakes those who wait. They need the feed's lock before they look, so it may come before the change is complete.
func (l *topicLog) wakeUp() {
	close(l.wake)
	l.wake = make(chan struct{})
}

// resetTopics forgets what was remembered: the state was replaced as a whole, at index.
func (f *Feed) resetTopics(index uint64) {
	for _, l := range f.topics {
		l.from, l.entries = AfterIndex(index), nil
		l.wakeUp()
	}
}

// Subscription is a reader of one topic of a feed. It must be closed.
type Subscription struct {
	feed  *Feed
	topic Topic
	log   *topicLog // nil: the whole feed
}

// Subscribe begins to follow a topic.
func (f *Feed) Subscribe(t Topic) *Subscription {
	s := &Subscription{feed: f, topic: t}
	if t == (Topic{}) {
		return s
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if s.log = f.topics[t]; s.log == nil {
		s.log = &topicLog{from: AfterIndex(f.last), wake: make(chan struct{})}
		if f.topics == nil {
			f.topics = map[Topic]*topicLog{}
		}
		f.topics[t] = s.log
	}
	s.log.readers++
	return s
}

// Close ends the subscription.
func (s *Subscription) Close() {
	if s.log == nil {
		return
	}
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	if s.log.readers--; s.log.readers == 0 {
		delete(s.feed.topics, s.topic)
	}
}

// Next returns changes of the topic that come after a position, oldest first, and where to go on. It looks at up to limit
// changes; all: there is no more for now. The error is Feed.After's.
func (s *Subscription) Next(p Position, limit int) (changes []Change, next Position, all bool, err error) {
	if changes, next, all, ok, err := s.remembered(p, limit); ok || err != nil {
		return changes, next, all, err
	}
	changes, last, err := s.feed.After(p, limit)
	if err != nil {
		return nil, p, false, err
	}
	if next, all = AfterIndex(last), true; len(changes) == limit {
		next, all = changes[limit-1].Position(), false
	}
	if s.log != nil {
		changes = slices.DeleteFunc(changes, func(c Change) bool { return !c.In(s.topic) })
	}
	return changes, next, all, nil
}

// remembered is Next by what is remembered of the topic. Not ok: that does not reach back to p.
func (s *Subscription) remembered(p Position, limit int) (changes []Change, next Position, all, ok bool, err error) {
	f := s.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	if s.log == nil || p.Compare(s.log.from) < 0 {
		return nil, p, false, false, nil
	}
	entries := s.log.after(p)
	if len(entries) > 0 && entries[0].seq < f.first {
		return nil, p, false, true, f.tooOld(p)
	}
	for _, e := range entries[:min(len(entries), limit)] {
		changes = append(changes, f.ring[e.seq%uint64(len(f.ring))])
	}
	if len(entries) > limit {
		return changes, entries[limit-1].at, false, true, nil
	}
	// Nothing of the topic is between its newest change and the end of the feed.
	return changes, AfterIndex(f.last), true, true, nil
}

func (l *topicLog) after(p Position) []topicEntry {
	i, _ := slices.BinarySearchFunc(l.entries, p, func(e topicEntry, p Position) int {
		if e.at.Compare(p) <= 0 {
			return -1
		}
		return 1
	})
	return l.entries[i:]
}

// Wait blocks until there may be a change of the topic after a position, or ctx ends.
func (s *Subscription) Wait(ctx context.Context, p Position) error {
	if s.log == nil {
		return s.feed.Wait(ctx, p.Index)
	}
	for {
		s.feed.mu.Lock()
		some := p.Compare(s.log.from) < 0 || len(s.log.after(p)) > 0
		wake := s.log.wake
		s.feed.mu.Unlock()
		if some {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-wake:
		}
	}
}
