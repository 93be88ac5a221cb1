package size

import (
	"strings"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

// Who asks for devices that no offering has is told which, and of whom they are short.
func TestRefusalNamesDevices(t *testing.T) {
	offers := []muster.Offering{{Provider: "fake", Name: "small", Market: muster.OnDemand, Available: true, Capacity: muster.Resources{CPU: 8000, Memory: muster.GiB}}}
	c := newCluster(t)
	c.do(&state.PoolsSet{Pools: []state.Pool{{Name: "p", Provider: "fake", Max: 10}}})
	c.do(&state.OfferingsSeen{Provider: "fake", Offerings: offers})
	spec := &api.JobSpec{Name: "a", Template: api.Template{Command: []string{"true"}, Resources: api.ResourcesSpec{Devices: []api.DeviceAskSpec{{Count: 2}}}}}
	spec.Defaults()
	run, err := state.NewRun(muster.JobKey{Namespace: "default", Name: "a"}, "u", 1, spec)
	if err != nil {
		t.Fatal(err)
	}
	ok, _, why := Fits(c.s.Latest(), run)
	if ok || !strings.Contains(why, "2 gpu") || !strings.Contains(why, "small is short of gpu") {
		t.Errorf("%v: %s", ok, why)
	}
}

// Who asks whether a job fits is told where.
func TestFitNamesOffering(t *testing.T) {
	c := newCluster(t)
	c.do(&state.PoolsSet{Pools: []state.Pool{{Name: "p", Provider: "fake", Max: 10}}})
	c.do(&state.OfferingsSeen{Provider: "fake", Offerings: []muster.Offering{
		{Provider: "fake", Name: "tiny", Market: muster.OnDemand, Available: true, Capacity: muster.Resources{CPU: 100, Memory: muster.GiB}},
		{Provider: "fake", Name: "small", Market: muster.OnDemand, Available: true, Capacity: muster.Resources{CPU: 8000, Memory: muster.GiB}},
	}})
	spec := &api.JobSpec{Name: "a", Template: api.Template{Command: []string{"true"}, Resources: api.ResourcesSpec{CPU: 1}}}
	spec.Defaults()
	run, err := state.NewRun(muster.JobKey{Namespace: "default", Name: "a"}, "u", 1, spec)
	if err != nil {
		t.Fatal(err)
	}
	if ok, _, why := Fits(c.s.Latest(), run); !ok || why != "a member fits small" {
		t.Errorf("%v: %q", ok, why)
	}
}
