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

// stage is where an evaluation is; the package comment describes the stages.
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

// entry is the evaluation of one job. A job has at most one. Broker.mu guards it.
type entry struct {
	uid      muster.JobUID
	key      muster.JobKey
	version  uint64
	priority int
	age      uint64
	shapeID  state.ShapeID
	run      *state.Run
	// wants is how many members wanted an allocation when the entry became ready. readyAt is when
	// that was.
	wants   int
	readyAt time.Time

	stage stage
	// at is when the entry is handled by time; 0 means never. For a delayed entry it is then ready;
	// for a blocked one another member is due; for a parked one the parking is over.
	at muster.Time
	// nacks counts failures in a row. While held is true, a change of the job does not end the
	// delay.
	nacks int
	held  bool

	// While out: window is its delivery, and changed says that the job has changed meanwhile.
	window  *window
	changed bool
	// While blocked: group has its shape.
	group *group
	// limitedIn is the namespace whose limit blocks it; then it has no group.
	limitedIn muster.Namespace
	// tried is the index of the state in which it fitted nowhere. waiting is how many members wait,
	// avoid which nodes none of them may use. settled is true if no node had room for the shape and
	// no node is avoided: then another member that becomes due changes nothing.
	tried   uint64
	waiting int
	avoid   []muster.NodeID
	settled bool
	// since is when it was found to fit nowhere, if it has got nothing after that; 0 means that it
	// is not passed over.
	since muster.Time
	// woken is the room for which it was woken, until it is answered.
	woken []promise
	// fact is what is proposed while it is parking. An empty Reason unparks the job.
	fact *state.JobParked
}

// rank orders entries for service: by priority, the highest first, then by age, then by uid.
func (e *entry) rank(o *entry) int {
	return cmp.Or(cmp.Compare(o.priority, e.priority), cmp.Compare(e.age, o.age), strings.Compare(string(e.uid), string(o.uid)))
}

// earlierEntry orders entries by their timer.
func earlierEntry(x, y *entry) bool {
	return cmp.Or(cmp.Compare(x.at, y.at), strings.Compare(string(x.uid), string(y.uid))) < 0
}

// take copies what the broker needs from the job's row. The entry must be in no ordered structure,
// because rank changes.
func (e *entry) take(j *state.Job) {
	e.key, e.version, e.priority, e.age, e.shapeID, e.run = j.Key, j.Version, j.Priority(), j.Age, j.Run.Shape, j.Run
}

// moveLocked changes an entry's stage. It removes the entry from the structures of the old stage
// and adds it to those of the new one. The caller handles the timer.
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
		e.window, e.changed = nil, false
	case blocked:
		b.unblockLocked(e)
	case parking:
		e.fact = nil
	}
	if to == parked || to == delayed && e.held {
		// It waits for another reason than that others are placed before it.
		e.since = 0
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

// setTimerLocked sets the time at which the entry is handled; 0 removes it.
func (b *Broker) setTimerLocked(e *entry, at muster.Time) {
	if e.at == at {
		return
	}
	// Out of the tree before the key changes, for the tree is ordered by it.
	if e.at != 0 {
		b.timers.Delete(e)
	}
	e.at = at
	if at != 0 {
		b.timers.Set(e)
		b.rearmLocked(at)
	}
}

// resyncLocked builds the queue from a snapshot: at the start, and when the feed has dropped
// changes. In the second case growth of room may have been missed, so blocked jobs become ready
// again.
func (b *Broker) resyncLocked(snap *state.Snapshot) {
	now := b.now(snap)
	b.blind = snap.Index()
	b.at, b.followed = state.AfterIndex(snap.Index()), snap.Index()
	for _, e := range b.entries {
		if e.stage == blocked {
			b.moveLocked(e, delayed)
		}
	}
	// First the known entries, some of which may be obsolete; then the jobs that the state lists as
	// having something to do, now or at some time.
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

// reviewLocked brings the entry of a job in line with what the job wants now. It is called when the
// job has changed, and when a worker is done with it. Calling it again without a change does
// nothing.
func (b *Broker) reviewLocked(uid muster.JobUID, snap *state.Snapshot, now muster.Time) {
	e, j := b.entries[uid], snap.JobByUID(uid)
	if e != nil && e.stage == out {
		// answerBlockedLocked reads again; Ack reviews the job in any case.
		e.changed = true
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
		// moveLocked will take it off this stage.
		b.stats.count[gone]++
		b.stats.Seen++
	} else if e.version != j.Version {
		// The job was replaced under the same uid. Nothing about the old version counts.
		b.moveLocked(e, delayed)
		e.nacks, e.held, e.since = 0, false, 0
		e.take(j)
	} else if e.priority != j.Priority() {
		// An environment's: what its runners are worth has changed, and with it their place in
		// every queue.
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
			return // the fact that parks it is being proposed
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
		// All waiting members are in a back-off.
		if e.stage != blocked {
			b.moveLocked(e, delayed)
		}
		b.setTimerLocked(e, at)
	case b.hopelessLocked(e) && j.Reserved == "":
		// Another job of this shape has just failed everywhere. Block this one without a try. A job
		// with a reservation is tried: the room is kept for it alone.
		g := b.groups[e.shapeID]
		b.blockLocked(e, g.decided, &place.Blocked{Shape: g.shape, Waiting: j.Waiting(), Full: true})
	default:
		b.setTimerLocked(e, 0)
		e.wants = wants(snap, j, now)
		b.moveLocked(e, ready)
	}
}

// dueAt returns when the first of a job's waiting members may be placed; 0 means now.
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

// dueLocked handles an entry whose timer has fired.
func (b *Broker) dueLocked(e *entry, snap *state.Snapshot, now muster.Time) {
	switch e.stage {
	case parked:
		// Its parking is over: unpark it by a fact.
		b.toParkLocked(e, &state.JobParked{UID: e.uid})
	case parking:
		// The last proposal failed; this is its retry.
		b.parking = append(b.parking, e)
		wait.Poke(b.toPark)
	default:
		e.held = false
		b.reviewLocked(e.uid, snap, now)
	}
}

// dropLocked removes an entry whose job wants nothing any more.
func (b *Broker) dropLocked(e *entry, snap *state.Snapshot) {
	b.setTimerLocked(e, 0)
	b.moveLocked(e, gone)
	b.releaseLocked(e, snap)
}
