package state

import (
	"fmt"

	"github.com/musterhq/muster"
)

// Claim is a claim's row. It is kept for as long as its runner is, so that who comes late is told how it ended.
type Claim struct {
	ID     muster.ClaimID    `cbor:"1,keyasint"`
	UID    muster.JobUID     `cbor:"2,keyasint"` // of the environment
	Env    muster.JobKey     `cbor:"3,keyasint"`
	Runner muster.AllocID    `cbor:"4,keyasint"`
	State  muster.ClaimState `cbor:"5,keyasint"`
	Made   muster.Time       `cbor:"6,keyasint"`
	// Deadline is when it expires; Idle how long, in microseconds, nothing may be done with the runner. 0: not by that.
	Deadline muster.Time `cbor:"7,keyasint,omitempty"`
	Idle     muster.Time `cbor:"8,keyasint,omitempty"`
	// Used is the last use that is known here. The leader knows later ones.
	Used        muster.Time `cbor:"9,keyasint"`
	Note        string      `cbor:"10,keyasint,omitempty"`
	Idempotency string      `cbor:"11,keyasint,omitempty"`
	Digest      string      `cbor:"12,keyasint,omitempty"`
	Ended       muster.Time `cbor:"13,keyasint,omitempty"`
	Reason      string      `cbor:"14,keyasint,omitempty"`
	Modified    uint64      `cbor:"15,keyasint"`
}

// Due is when a held claim expires if nothing more is done with its runner; 0: never.
func (c *Claim) Due() muster.Time {
	if c.State != muster.ClaimHeld {
		return 0
	}
	due := c.Deadline
	if c.Idle > 0 && (due == 0 || c.Used+c.Idle < due) {
		due = c.Used + c.Idle
	}
	return due
}

func (s *State) putClaim(before, after *Claim, verb Verb) {
	after.Modified = s.meta.Index
	if before != nil && before.Due() != 0 {
		s.t.due.Delete(before)
	}
	s.t.claims.Set(after)
	if after.Idempotency != "" {
		s.t.keys.Set(after)
	}
	if after.Due() != 0 {
		s.t.due.Set(after)
	}
	if verb != "" {
		s.changed(Change{Verb: verb, ClaimBefore: before, Claim: after})
	}
}

func (t *tables) dropClaim(c *Claim) {
	t.claims.Delete(c)
	if c.Due() != 0 {
		t.due.Delete(c)
	}
	if now, ok := t.keys.Get(c); ok && c.Idempotency != "" && now.ID == c.ID {
		t.keys.Delete(c)
	}
}

func (f *RunnerClaimed) apply(s *State, now muster.Time) (any, error) {
	j, err := s.jobByUID(f.UID)
	if err != nil {
		return nil, err
	}
	if f.Idempotency != "" {
		if c, ok := s.t.keys.Get(&Claim{UID: f.UID, Idempotency: f.Idempotency}); ok {
			if c.Digest != f.Digest {
				return nil, muster.Faultf(muster.FaultConflict, "idempotency key %q was used before for another claim, %s", f.Idempotency, c.ID)
			}
			return &Claimed{Claim: c, Repeated: true}, nil
		}
	}
	a := s.t.alloc(f.Runner)
	switch {
	case j.Env == nil || j.Stage != muster.JobLive:
		return nil, muster.Faultf(muster.FaultNotFound, "environment %s is no more", j.Key)
	case a == nil || a.UID != f.UID:
		return nil, muster.Faultf(muster.FaultConflict, "runner %s: not found", f.Runner)
	case f.TTL < 0 || f.Idle < 0:
		return nil, muster.Faultf(muster.FaultInvalid, "claim %s: a time-out is negative", f.Claim)
	}
	if c, taken := s.t.claims.Get(&Claim{ID: f.Claim}); taken {
		return nil, muster.Faultf(muster.FaultAlreadyExists, "claim %s is there, for runner %s", f.Claim, c.Runner)
	}
	b := *a
	if b.Runner, err = a.Runner.To("runner "+string(a.ID), muster.RunnerClaimed); err != nil {
		return nil, muster.Faultf(muster.FaultConflict, "%v", err)
	}
	b.Claim = f.Claim
	c := &Claim{ID: f.Claim, UID: f.UID, Env: j.Key, Runner: a.ID, State: muster.ClaimHeld, Made: now, Idle: f.Idle, Used: now,
		Note: f.Note, Idempotency: f.Idempotency, Digest: f.Digest}
	if f.TTL > 0 {
		c.Deadline = now + f.TTL
	}
	after := *j
	env := j.Env.counted(a.Runner, b.Runner)
	env.Claims++
	env.LastClaim = now
	// A runner that lived until it was wanted shows that they can be started.
	env.Failures, env.FailedAt, env.Failure = 0, 0, ""
	after.Env = env
	s.putAlloc(a, &b, VerbAllocClaimed)
	s.putJob(j, &after, "")
	s.putClaim(nil, c, VerbClaimMade)
	return &Claimed{Claim: c}, nil
}

// held is a claim that can still be changed.
func (t *tables) held(id muster.ClaimID) (*Claim, error) {
	c, ok := t.claims.Get(&Claim{ID: id})
	switch {
	case !ok:
		return nil, muster.Faultf(muster.FaultTooOld, "claim %s: not found", id)
	case c.State != muster.ClaimHeld:
		return nil, muster.Faultf(muster.FaultTooOld, "claim %s was %s: %s", id, c.State, c.Reason)
	}
	return c, nil
}

func (f *ClaimExtended) apply(s *State, now muster.Time) (any, error) {
	c, err := s.t.held(f.Claim)
	if err != nil {
		return nil, err
	}
	b := *c
	b.Used = now
	switch {
	case f.TTL == 0:
		b.Deadline = 0
	case f.TTL > 0:
		b.Deadline = now + f.TTL
	}
	if f.Idle >= 0 {
		b.Idle = f.Idle
	}
	s.putClaim(c, &b, VerbClaimExtended)
	return &b, nil
}

func (f *ClaimsTouched) apply(s *State, now muster.Time) (any, error) {
	n := 0
	for _, t := range f.Claims {
		c, err := s.t.held(t.Claim)
		if err != nil || t.At <= c.Used {
			continue
		}
		b := *c
		b.Used = min(t.At, now)
		s.putClaim(c, &b, "")
		n++
	}
	return n, nil
}

func (f *ClaimReleased) apply(s *State, now muster.Time) (any, error) {
	c, err := s.t.held(f.Claim)
	if err != nil {
		return nil, err
	}
	why := "released"
	if f.Reason != "" {
		why += ": " + f.Reason
	}
	return s.giveBack(c, muster.ClaimReleased, why, now), nil
}

func (f *ClaimsExpired) apply(s *State, now muster.Time) (any, error) {
	n := 0
	for _, e := range f.Claims {
		if c, err := s.t.held(e.Claim); err == nil && c.Modified == e.Modified {
			s.giveBack(c, muster.ClaimExpired, e.Reason, now)
			n++
		}
	}
	return n, nil
}

// giveBack ends a claim, and its runner with it.
func (s *State) giveBack(c *Claim, to muster.ClaimState, why string, now muster.Time) *Claim {
	after := s.endClaim(c, to, why, now)
	if a := s.t.alloc(c.Runner); a != nil && a.Live() && a.Desired == muster.AllocRun {
		s.stopAlloc(a, muster.StopSurplus, fmt.Sprintf("claim %s: %s", c.ID, why))
	}
	return after
}

func (s *State) endClaim(c *Claim, to muster.ClaimState, why string, now muster.Time) *Claim {
	b := *c
	next, err := c.State.To("claim "+string(c.ID), to)
	if err != nil {
		return c
	}
	b.State, b.Reason, b.Ended = next, why, now
	s.putClaim(c, &b, verbOfClaim(next))
	return &b
}

// Claim by id; nil if there is none.
func (s *Snapshot) Claim(id muster.ClaimID) *Claim { return get(s.t.claims, &Claim{ID: id}) }

// Claims iterates by id over those after the id ("": all), ended ones included.
func (s *Snapshot) Claims(after muster.ClaimID, fn func(*Claim) bool) {
	s.t.claims.Ascend(&Claim{ID: after}, func(c *Claim) bool { return c.ID == after || fn(c) })
}

// ClaimByKey is the one that was made with an idempotency key; nil if there is none.
func (s *Snapshot) ClaimByKey(uid muster.JobUID, key string) *Claim {
	return get(s.t.keys, &Claim{UID: uid, Idempotency: key})
}

// DueClaims iterates over held claims by when they expire, the earliest first.
func (s *Snapshot) DueClaims(fn func(*Claim) bool) { s.t.due.Scan(fn) }

// ClaimCount is how many there are, ended ones included.
func (s *Snapshot) ClaimCount() int { return s.t.claims.Len() }

// eachClaim checks that claims and runners agree, and the indexes.
func (c *checker) eachClaim() {
	due, held := 0, map[muster.AllocID]muster.ClaimID{}
	c.snap.Claims("", func(cl *Claim) bool {
		a := c.snap.Alloc(cl.Runner)
		if a == nil || a.Claim != cl.ID {
			c.bad("claim %s is for runner %s, which does not know it", cl.ID, cl.Runner)
			return true
		}
		if cl.State == muster.ClaimHeld {
			if other, twice := held[cl.Runner]; twice {
				c.bad("runner %s has two claims, %s and %s", cl.Runner, other, cl.ID)
			}
			held[cl.Runner] = cl.ID
			if a.Runner != muster.RunnerClaimed {
				c.bad("claim %s is held, and its runner %s is %s", cl.ID, a.ID, a.Runner)
			}
		}
		if cl.Due() != 0 {
			due++
			if _, ok := c.snap.t.due.Get(cl); !ok {
				c.bad("claim %s is not in the index by time", cl.ID)
			}
		}
		return true
	})
	if due != c.snap.t.due.Len() {
		c.bad("%d claims have a due time, %d are in the index", due, c.snap.t.due.Len())
	}
}
