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

// In a pool with machines of two architectures, what waits for one gets a machine of it, also where one of
// the other costs less. An image for none of them is refused with the reason.
func TestLaunchesOfTheArchitectureOfTheImage(t *testing.T) {
	offer := func(name muster.OfferingName, arch string, price muster.Price) muster.Offering {
		return muster.Offering{Provider: "fake", Name: name, Market: muster.OnDemand, Available: true, Price: price,
			Capacity: muster.Resources{CPU: 4000, Memory: 8 * muster.GiB}, Attributes: map[string]string{"arch": arch}}
	}
	for _, tc := range []struct{ architectures, want string }{
		{"", "arm"}, {"arm64", "arm"}, {"amd64", "amd"}, {"amd64 arm64", "arm"}, {"riscv64", ""},
	} {
		c := newCluster(t)
		c.do(&state.PoolsSet{Pools: []state.Pool{{Name: "p", Provider: "fake", Max: 10}}})
		c.do(&state.OfferingsSeen{Provider: "fake", Offerings: []muster.Offering{offer("amd", "amd64", 90_000), offer("arm", "arm64", 50_000)}})
		spec := &api.JobSpec{Name: "a", Template: api.Template{Image: "web:1", Command: []string{"true"}, Resources: api.ResourcesSpec{CPU: 2}}}
		spec.Defaults()
		f := &state.JobSubmitted{Key: muster.JobKey{Namespace: "default", Name: "a"}, UID: "u", Spec: spec, Architectures: strings.Fields(tc.architectures)}
		c.do(f)
		d := c.plan()
		got := ""
		for _, l := range d.Launch {
			got += string(l.Offering.Name)
		}
		if got != tc.want {
			t.Errorf("%q: launches %q, not %q", tc.architectures, got, tc.want)
		}
		if ok, _, why := Fits(c.s.Latest(), c.s.Latest().JobByUID("u").Run); ok != (tc.want != "") || !ok && !strings.Contains(why, "arch = riscv64 (its image)") {
			t.Errorf("%q: %t, %s", tc.architectures, ok, why)
		}
	}
}
