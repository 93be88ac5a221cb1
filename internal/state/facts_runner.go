package state

import (
	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

// Facts about environments, runners and claims.

// EnvironmentSet brings an environment, or changes it. Value: *EnvironmentChange.
type EnvironmentSet struct {
	Key       muster.JobKey        `cbor:"1,keyasint"` // as of muster.EnvironmentKey
	UID       muster.JobUID        `cbor:"2,keyasint"` // drawn; used unless a live one of the name is changed
	Spec      *api.EnvironmentSpec `cbor:"3,keyasint"` // defaults filled in
	IfVersion *uint64              `cbor:"4,keyasint,omitempty"`
	// IfSet refuses it unless the spec that it replaces is the one that was set at this index of the log. It says more than
	// IfVersion: not every change of a spec is a new version.
	IfSet *uint64 `cbor:"5,keyasint,omitempty"`
	// Rollout makes a new version of it even if nothing is changed: runners that nobody has are replaced, and nodes ask anew
	// what the tag of the image means.
	Rollout bool `cbor:"6,keyasint,omitempty"`
	// Architectures are those that the image is for; see JobSubmitted.
	Architectures []string `cbor:"7,keyasint,omitempty"`
}

// EnvironmentChange is the answer to EnvironmentSet.
type EnvironmentChange struct {
	UID       muster.JobUID
	Version   uint64
	Index     uint64
	New       bool
	Unchanged bool
}

// EnvironmentDeleted is a user's: what is not claimed ends at once, and with
// Claimed what is as well; else claimed runners live on until they are released or expire. Value: *Job before it.
type EnvironmentDeleted struct {
	Key     muster.JobKey `cbor:"1,keyasint"`
	Claimed bool          `cbor:"2,keyasint,omitempty"`
}

// RunnersWanted says how many runners there shall ever have been: above the number that
// have been placed, so many are wanted. Those that were never placed may be taken back so.
type RunnersWanted struct {
	UID   muster.JobUID `cbor:"1,keyasint"`
	Count int           `cbor:"2,keyasint"`
	// Priority of those that wait.
	Priority int `cbor:"3,keyasint,omitempty"`
	// Stock is how many are wanted warm in all, Floor how many of them at the environment's priority; Why says why.
	Stock int    `cbor:"4,keyasint,omitempty"`
	Floor int    `cbor:"5,keyasint,omitempty"`
	Why   string `cbor:"6,keyasint,omitempty"`
	// Drop takes back those, too, that wait for another attempt.
	Drop bool `cbor:"7,keyasint,omitempty"`
	// Alert is since when too few are warm; 0: there are enough.
	Alert muster.Time `cbor:"8,keyasint,omitempty"`
	// Demand is what made Stock larger; nil leaves what was recorded before.
	Demand *WarmDemand `cbor:"9,keyasint,omitempty"`
}

// RunnersStopped ends runners that nobody has. Those that somebody has by now are passed over. Value: how many.
type RunnersStopped struct {
	UID     muster.JobUID    `cbor:"1,keyasint"`
	Runners []muster.AllocID `cbor:"2,keyasint"`
	Why     string           `cbor:"3,keyasint,omitempty"`
	// Unready: they could not be started, for all that anybody hears. What is warm by now is passed over, and each counts as a
	// failure of the environment.
	Unready bool `cbor:"4,keyasint,omitempty"`
}

// RunnersPurged forgets ended runners with their claims.
type RunnersPurged struct {
	Runners []muster.AllocID `cbor:"1,keyasint"`
}

// RunnerClaimed gives a warm runner to one holder; refused if it is not warm any more.
// A key that was used before gives the claim from then. Value: *Claimed.
type RunnerClaimed struct {
	Claim  muster.ClaimID `cbor:"1,keyasint"`
	UID    muster.JobUID  `cbor:"2,keyasint"` // of the environment
	Runner muster.AllocID `cbor:"3,keyasint"`
	// TTL and Idle in microseconds; 0: none.
	TTL  muster.Time `cbor:"4,keyasint,omitempty"`
	Idle muster.Time `cbor:"5,keyasint,omitempty"`
	Note string      `cbor:"6,keyasint,omitempty"`
	// Idempotency key and digest of the request; empty if none was given.
	Idempotency string `cbor:"7,keyasint,omitempty"`
	Digest      string `cbor:"8,keyasint,omitempty"`
}

// Claimed is the answer to RunnerClaimed.
type Claimed struct {
	Claim *Claim
	// Repeated: the claim was there by its key; the runner of the fact was not taken.
	Repeated bool
}

// ClaimExtended sets the deadline of a held claim anew, so long from now, or its idle
// time; -1 leaves one as it is. It counts as use. Value: *Claim.
type ClaimExtended struct {
	Claim muster.ClaimID `cbor:"1,keyasint"`
	TTL   muster.Time    `cbor:"2,keyasint"`
	Idle  muster.Time    `cbor:"3,keyasint"`
}

// ClaimsTouched: their runners were used.
type ClaimsTouched struct {
	Claims []Touch `cbor:"1,keyasint"`
}

// Touch is one use.
type Touch struct {
	Claim muster.ClaimID `cbor:"1,keyasint"`
	At    muster.Time    `cbor:"2,keyasint"`
}

// ClaimReleased gives a runner back, to be destroyed. Value: *Claim.
type ClaimReleased struct {
	Claim  muster.ClaimID `cbor:"1,keyasint"`
	Reason string         `cbor:"2,keyasint,omitempty"`
}

// ClaimsExpired ends claims whose time is over. One that has changed since is passed over.
type ClaimsExpired struct {
	Claims []Expiry `cbor:"1,keyasint"`
}

// Expiry is the end of one.
type Expiry struct {
	Claim  muster.ClaimID `cbor:"1,keyasint"`
	Reason string         `cbor:"2,keyasint,omitempty"`
	// Modified is the row's that was judged.
	Modified uint64 `cbor:"3,keyasint"`
}
