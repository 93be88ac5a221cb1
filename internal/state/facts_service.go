package state

import "github.com/musterhq/muster"

// Facts about service and system jobs.

// RolloutMoved: the members of a standing job all run its version, or will not. Refused if the job has another version.
type RolloutMoved struct {
	UID     muster.JobUID       `cbor:"1,keyasint"`
	Version uint64              `cbor:"2,keyasint"`
	Stage   muster.RolloutStage `cbor:"3,keyasint"`
	Reason  string              `cbor:"4,keyasint,omitempty"`
}

// SystemSized says how many members a system job shall ever have had, and which of those that wait
// for another attempt are not wanted any more.
type SystemSized struct {
	UID     muster.JobUID `cbor:"1,keyasint"`
	Version uint64        `cbor:"2,keyasint"`
	Count   int           `cbor:"3,keyasint"`
	Drop    []int         `cbor:"4,keyasint,omitempty"`
}

// AllocsPurged forgets ended attempts of members that have a newer one, and any of an ended job, which is purged
// next. Others are passed over. Value: how many.
type AllocsPurged struct {
	Allocs []muster.AllocID `cbor:"1,keyasint"`
}
