package state

import (
	"slices"

	"github.com/musterhq/muster"
)

// FormatDemand is the first format with the demand for runners.
const FormatDemand Format = 7

// MaxPeaks bounds the peaks of a WarmDemand. They are one a minute for as long as package warm looks
// back, and one for each end of that time.
const MaxPeaks = 12

// WarmDemand is what claims of an environment did lately, as coarsely as the size of its stock needs
// it: a new leader, which has counted nothing, decides by it.
type WarmDemand struct {
	// Peaks are in the order of their minutes. Minutes without claims have none.
	Peaks []Peak `cbor:"1,keyasint,omitempty"`
	// Start is how long a start took that nine in ten did not exceed, in microseconds; 0: not known.
	Start muster.Time `cbor:"2,keyasint,omitempty"`
}

// Peak is the most claims that came within the time of one start, and ended in one minute.
type Peak struct {
	// Minute is the beginning of the minute.
	Minute muster.Time `cbor:"1,keyasint"`
	Claims int         `cbor:"2,keyasint"`
}

// Equal reports whether two records say the same. Nil is an empty one.
func (d *WarmDemand) Equal(o *WarmDemand) bool {
	if d == nil || o == nil {
		return (d == nil || len(d.Peaks) == 0) && (o == nil || len(o.Peaks) == 0)
	}
	return d.Start == o.Start && slices.Equal(d.Peaks, o.Peaks)
}

// DemandSeen records the demand of environments, in place of what was recorded before.
type DemandSeen struct {
	Environments []EnvironmentDemand `cbor:"1,keyasint"`
}

// EnvironmentDemand is that of one.
type EnvironmentDemand struct {
	UID    muster.JobUID `cbor:"1,keyasint"`
	Demand *WarmDemand   `cbor:"2,keyasint"`
}

func (f *DemandSeen) apply(s *State, _ muster.Time) (any, error) {
	for _, e := range f.Environments {
		j, err := s.jobByUID(e.UID)
		if err != nil || j.Env == nil || j.Stage != muster.JobLive || e.Demand == nil {
			continue
		}
		b, env := *j, *j.Env
		env.Demand = e.Demand.bounded()
		b.Env = &env
		s.putJob(j, &b, "")
	}
	return nil, nil
}

// bounded is a record of its own, with the newest peaks only.
func (d *WarmDemand) bounded() *WarmDemand {
	return &WarmDemand{Peaks: slices.Clone(d.Peaks[max(len(d.Peaks)-MaxPeaks, 0):]), Start: d.Start}
}
