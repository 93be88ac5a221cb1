package fleet

import (
	"testing"

	"github.com/musterhq/muster"
)

// TestBlocksCoverWhatWasRefused: whatever a provider says that a fault is about, the offering that was refused is not asked for again at once.
func TestBlocksCoverWhatWasRefused(t *testing.T) {
	o := &muster.Offering{Provider: "p", Zone: "a", Name: "o", Market: muster.Spot, Family: "f"}
	for _, kind := range []muster.FaultKind{
		muster.FaultCapacity, muster.FaultQuota, muster.FaultRateLimited, muster.FaultAuth, muster.FaultInvalid, muster.FaultTransient, muster.FaultAmbiguous, "unheard-of",
	} {
		for _, s := range []muster.Scope{
			{}, {Zone: "a"}, {Zone: "eu-a"}, {Offering: "o"}, {Offering: "other"}, {Market: muster.OnDemand}, {Family: "f"}, {Family: "g"}, {Zone: "a", Offering: "other"}, {Provider: "q"},
		} {
			got := scopeOf(o, &muster.Fault{Kind: kind, Scope: s})
			if !got.Covers(o) {
				t.Errorf("%s of %q blocks %q, which is not what was refused", kind, s, got)
			}
			if kind == muster.FaultCapacity && s == (muster.Scope{Zone: "a"}) && got != (muster.Scope{Provider: "p", Zone: "a"}) {
				t.Errorf("a scope that fits became %q", got)
			}
		}
	}
}
