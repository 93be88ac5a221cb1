package broker

import (
	"cmp"
	"strings"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/place"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/wait"
)

// stage is where an evaluation is; see the package comment.
type stage uint8

const (
	gone stage = iota
	ready
	out
	delayed
	blocked
	parking
	parked
	stages
)

// entry is one job's evaluation. There is at most one per job.
type entry struct {
	uid      muster.JobUID
	key      muster.JobKey
	version  uint64
	priority int
	age      uint64
	shapeID  state.ShapeID
	run      *state.Run
	// wants is how many members want an allocation, as of when it became ready.
	wants   int
	readyAt time.Time

	stage stage
	// at is when something happens by itself; 0: never. Of a delayed one: it is
	// ready; of a blocked one: another of its members is due; of a parked one: its time is over.
	at muster.Time
	// nacks in a row. While held, changes of the job do not shorten the delay.
	nacks int
	held  bool

	// While out: its delivery, and whether the job changed meanwhile.
	window *window
	again  bool
	// While blocked: its group, how new the state was in which it fitted nowhere,
	// how many members wait, and which nodes none of them may use. Settled says
	// that no node had room for the shape and that they may use any: then a further member that is
	// due changes nothing.
	group *group
	// bound is whose limit it is blocked by; then it has no group.
	bound   muster.Namespace
	tried   uint64
	waiting int
	avoid   []muster.NodeID
	settled bool
	// since is when it was found to fit nowhere and has not got anything since; 0: it is not blocked.
	since muster.Time
	// woken is the room that it was woken for, until it is answered.
	woken []promise
	// While parking: what is proposed.
	fact *state.JobParked
}

// rank is the order of service: priority, highest first, then age.
func (e *entry) rank(o *entry) int {
	return cmp.Or(cmp.Compare(o.priority, e.priority), cmp.Compare(e.age, o.age), strings.Compare(string(e.uid), string(o.uid)))
}

func earlierEntry(x, y *entry) bool {
	return cmp.Or(cmp.Compare(x.at, y.at), strings.Compare(string(x.uid), string(y.uid))) < 0
}

// take copies what the broker needs of the job's row.
func (e *entry) take(j *state.Job) {
	e.key, e.version, e.priority, e.age, e.shapeID, e.run = j.Key, j.Version, j.Priority(), j.Age, j.Run.Shape, j.Run
}

// moveLocked changes an entry's stage, and takes it out of and puts it into
// what belongs to the stages. The timer is the caller's business.
func (b *Broker) moveLocked(e *entry, to stage) {
	switch e.stage {
	case ready:
		b.ready.Delete(e)
		b.bands.remove(e)
	case out:
		b.stats.Ran += time.Since(e.window.began)
		delete(e.window.jobs, e.uid)
		if len(e.window.jobs) == 0 {
			delete(b.windows, e.window.token)
		}
		e.window, e.again = nil, false
	case blocked:
		b.unblockLocked(e)
	case parking:
		e.fact = nil
	}
	if to == parked || to == delayed && e.held {
		e.since = 0 // what is wrong with it is not that others pass it
	}
	b.stats.count[e.stage]--
	b.stats.count[to]++
	e.stage = to
	switch to {
	case ready:
		e.readyAt = time.Now()
		b.ready.Set(e)
		b.bands.add(e)
	case gone:
		delete(b.entries, e.uid)
	}
	if to != delayed {
		e.held = false
	}
}

// setTimerLocked sets or (0) takes off the time at which the entry is looked at by itself.
func (b *Broker) setTimerLocked(e *entry, at muster.Time) {
	if e.at == at {
		return
	}
	if e.at != 0 {
		b.timers.Delete(e)
	}
	e.at = at
	if at != 0 {
		b.timers.Set(e)
		b.rearmLocked(at)
	}
}

// resyncLocked builds the queue from a snapshot, or builds it anew when the
// feed could not be followed: then growth of room may have been missed.
func (b *Broker) resyncLocked(snap *state.Snapshot) {
	now := b.clock(snap)
	b.blind = snap.Index()
	b.at, b.followed = state.AfterIndex(snap.Index()), snap.Index()
	for _, e := range b.entries {
		if e.stage == blocked {
			b.moveLocked(e, delayed)
		}
	}
	for uid := range b.entries {
		b.reviewLocked(uid, snap, now)
	}
	snap.Unsettled(func(j *state.Job) bool {
		b.reviewLocked(j.UID, snap, now)
		return true
	})
	snap.WakeAt(func(w state.Wake) bool {
		if b.entries[w.UID] == nil {
			b.reviewLocked(w.UID, snap, now)
		}
		return true
	})
}

// reviewLocked brings a job's entry in line with what the job wants now. It is
// called when the job has changed, and when a worker is through with it.
func (b *Broker) reviewLocked(uid muster.JobUID, snap *state.Snapshot, now muster.Time) {
	e, j := b.entries[uid], snap.JobByUID(uid)
	if e != nil && e.stage == out {
		e.again = true // looked at when the worker is through
		return
	}
	if j == nil || j.Waiting() == 0 {
		if e != nil {
			b.dropLocked(e, snap)
		}
		return
	}
	if e == nil {
		e = &entry{uid: uid}
		e.take(j)
		b.entries[uid] = e
		b.stats.count[gone]++ // it comes from there
		b.stats.Seen++
	} else if e.version != j.Version {
		// Another job under the same uid: nothing of the old one counts.
		b.moveLocked(e, delayed)
		e.nacks, e.held, e.since = 0, false, 0
		e.take(j)
	} else if e.priority != j.Priority() {
		// An environment's: what its runners are worth has changed, and with it their place in every queue.
		b.moveLocked(e, delayed)
		e.take(j)
	}
	if j.Parked != "" {
		b.parkedLocked(e, j, snap)
		return
	}
	switch e.stage {
	case ready:
		return
	case parking:
		if e.fact.Reason != "" {
			return // the fact is on its way
		}
	case delayed:
		if e.held {
			return
		}
	case blocked:
		if e.settled {
			return // only growth helps
		}
	}
	at := dueAt(snap, j)
	switch {
	case at > now:
		if e.stage != blocked {
			b.moveLocked(e, delayed)
		}
		b.setTimerLocked(e, at)
	case b.hopelessLocked(e) && j.Reserved == "":
		g := b.groups[e.shapeID]
		b.blockLocked(e, g.decided, &place.Blocked{Shape: g.shape, Waiting: j.Waiting(), Full: true})
	default:
		b.setTimerLocked(e, 0)
		e.wants = wants(snap, j, now)
		b.moveLocked(e, ready)
	}
}

// dueAt is when the first of a job's waiting members may be placed; 0: now.
func dueAt(snap *state.Snapshot, j *state.Job) (at muster.Time) {
	if j.Untried() > 0 {
		return 0
	}
	snap.Retries(j.UID).Due(1<<62, func(m *state.Member) bool {
		at = m.RetryAt
		return false
	})
	return at
}

// dueLocked handles an entry whose time has come.
func (b *Broker) dueLocked(e *entry, snap *state.Snapshot, now muster.Time) {
	switch e.stage {
	case parked:
		b.toParkLocked(e, &state.JobParked{UID: e.uid})
	case parking:
		b.parking = append(b.parking, e)
		wait.Poke(b.toPark)
	default:
		e.held = false
		b.reviewLocked(e.uid, snap, now)
	}
}

// dropLocked forgets an entry: its job wants nothing any more.
func (b *Broker) dropLocked(e *entry, snap *state.Snapshot) {
	b.setTimerLocked(e, 0)
	b.moveLocked(e, gone)
	b.releaseLocked(e, snap)
}
