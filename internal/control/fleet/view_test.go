package fleet

import (
	"fmt"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/size"
	"github.com/musterhq/muster/internal/state"
)

// TestSizeView: the view follows a feed, and is built anew when it has fallen
// behind what the feed keeps.
func TestSizeView(t *testing.T) {
	s, err := state.New(16)
	if err != nil {
		t.Fatal(err)
	}
	index := uint64(0)
	do := func(f state.Fact) {
		t.Helper()
		b, err := s.Encode(f)
		if err != nil {
			t.Fatal(err)
		}
		index++
		if err, bad := s.Apply(index, 1, int64(index), [][]byte{b})[0].(error); bad {
			t.Fatal(err)
		}
	}
	o := muster.Offering{Provider: "fake", Name: "small", Market: muster.OnDemand, Capacity: muster.Resources{CPU: 1000}, Available: true}
	do(&state.TermBegan{Term: 1, Cluster: "c"})
	do(&state.PoolsSet{Pools: []state.Pool{{Name: "p", Provider: "fake", Min: 50, Max: 100, IdleTimeout: 60e6}}})
	do(&state.OfferingsSeen{Provider: "fake", Offerings: []muster.Offering{o}})
	var v sizeView
	built, launched := map[*size.View]bool{}, 0
	for _, batch := range []int{1, 3, 10, 40} {
		want := max(50-launched, 0)
		view := v.to(s.Latest(), s.Feed())
		built[view] = true
		if d := size.Plan(view, nil, muster.Time(index), false); len(d.Launch) != want {
			t.Errorf("with %d nodes there are %d launches, want %d", launched, len(d.Launch), want)
		}
		for range batch {
			launched++
			id := muster.NodeID(fmt.Sprintf("n%d", launched))
			do(&state.NodeLaunching{ID: id, Token: muster.Token(id), Pool: "p", Offering: o})
		}
	}
	if len(built) != 1 {
		t.Errorf("built %d times before the feed was too short", len(built))
	}
	if view := v.to(s.Latest(), s.Feed()); built[view] {
		t.Error("it was advanced over changes that the feed does not keep")
	} else if d := size.Plan(view, nil, muster.Time(index), false); len(d.Launch) != 0 {
		t.Errorf("%d launches with %d nodes", len(d.Launch), launched)
	}
}

// An offering that differs in its devices alone, or in the most that it may cost, is another one.
func TestOfferingsDifferInAllTheySay(t *testing.T) {
	a := muster.Offering{Provider: "fake", Name: "small", Market: muster.OnDemand, Price: 1}
	devices, ceiling := a, a
	devices.Devices = []muster.Device{{Kind: "gpu", Count: 1}}
	ceiling.PriceCap = 7
	if !sameOffering(a, a) || sameOffering(a, devices) || sameOffering(a, ceiling) {
		t.Error("devices or the highest price are not looked at")
	}
}
