package present

import (
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/size"
)

func TestPoolOffer(t *testing.T) {
	o := &muster.Offering{Provider: "aws", Name: "m", Zone: "a", Market: muster.Spot, Price: 80_000, Available: true,
		Capacity: muster.Resources{CPU: 4000, Memory: 16 * muster.GiB}}
	got := PoolOffer(o, nil, 1e6)
	if got.Price != 0.08 || got.PerCore != 0.02 || got.PerGiB != 0.005 || !got.Available || got.Blocked != nil {
		t.Errorf("%+v", got)
	}
	scope := muster.Scope{Provider: "aws", Offering: "m"}
	for _, c := range []struct {
		until     muster.Time
		available bool
	}{{5e6, false}, {1e6, true}} {
		got := PoolOffer(o, []size.Block{{Scope: muster.Scope{Provider: "other"}}, {Scope: scope, Until: c.until, Why: "none"}}, 1e6)
		if got.Available != c.available || got.Blocked == nil || got.Blocked.Why != "none" {
			t.Errorf("until %d: %+v", c.until, got)
		}
	}
	// Without resources there is no division by zero.
	if got := PoolOffer(&muster.Offering{Price: 1}, nil, 0); got.PerCore != 0 || got.PerGiB != 0 {
		t.Errorf("%+v", got)
	}
}
