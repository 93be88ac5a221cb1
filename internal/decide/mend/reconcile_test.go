package mend

import (
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

// Two providers of one account have one owner, so each lists the other's instances. Neither adopts them,
// nor takes them for strays, while the other one is configured.
func TestInstancesOfAnotherProviderOfTheAccount(t *testing.T) {
	c := newCluster(t)
	pools := []state.Pool{{Name: "p", Provider: "fake", Max: 9, BootTimeout: 300e6, Grace: 60e6}, {Name: "q", Provider: "twin", Max: 9, BootTimeout: 300e6, Grace: 60e6}}
	c.do(&state.PoolsSet{Pools: pools})
	c.do(&state.NodeLaunching{ID: "n1", Token: "tn1", Pool: "q", Offering: muster.Offering{Provider: "twin", Name: "o", Capacity: room}})
	list := &List{Asked: c.now, Complete: true, Instances: []Instance{{ID: "in1", Token: "tn1", Node: "n1", Pool: "q", Offering: "o"}}}
	reconcile := func(want string) {
		t.Helper()
		got := "nothing"
		if strays, adopt := Reconcile(c.s.Latest(), "fake", list); len(strays) > 0 {
			got = "stray"
		} else if len(adopt) > 0 {
			got = "adopted"
		}
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	reconcile("nothing")
	c.do(&state.NodeLaunched{ID: "n1", Instance: "in1"})
	reconcile("nothing")
	// Gone, it is still in a list that lags.
	c.do(&state.NodeTerminating{ID: "n1", Reason: "idle"})
	c.do(&state.NodeGone{ID: "n1", Reason: "idle"})
	reconcile("nothing")
	// Nobody else is left to mend it.
	c.do(&state.PoolsSet{Pools: pools[:1]})
	reconcile("adopted")
}
