package server

import (
	"slices"
	"testing"
	"time"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

// What the configuration says of a pool is what the state has of it, in its units.
func TestPoolsOfTheConfiguration(t *testing.T) {
	s := &Server{cfg: api.ServerConfig{Pools: []api.PoolSpec{{
		Name: "p", Provider: "aws", Offerings: []string{"a", "b"}, Min: 1, Max: 9, MaxLaunching: 4, Spare: 2, PriceFactor: 1.5,
		IdleTimeout: api.Duration(time.Minute), BootTimeout: api.Duration(5 * time.Minute), Grace: api.Duration(time.Minute), Budget: api.BudgetSpec{PerHour: 2.3, PerMonth: 1e9}, OCIRuntime: "runsc",
	}}}}
	var err error
	if s.state, err = state.New(16); err != nil {
		t.Fatal(err)
	}
	got := s.pools().Pools
	want := state.Pool{
		Name: "p", Provider: "aws", Min: 1, Max: 9, MaxLaunching: 4, Spare: 2, PriceFactor: 1.5,
		IdleTimeout: 60e6, BootTimeout: 300e6, BudgetHour: 2_300_000, BudgetMonth: 1e15,
	}
	if len(got) != 1 || len(got[0].Offerings) != 2 {
		t.Fatalf("%+v", got)
	}
	if got[0].Runtime != "runsc" || !slices.Equal(s.agentArgs("p"), []string{"--oci-runtime", "runsc"}) || s.agentArgs("another") != nil {
		t.Errorf("%q", got[0].Runtime)
	}
	// What is behind a path says its name itself.
	if s.cfg.Pools[0].OCIRuntime = "/opt/kata/kata-runtime"; s.pools().Pools[0].Runtime != "" || !slices.Equal(s.agentArgs("p"), []string{"--oci-runtime", "/opt/kata/kata-runtime"}) {
		t.Errorf("%+v", s.pools().Pools[0])
	}
	s.cfg.Pools[0].OCIRuntime = ""
	s.cfg.Pools[0].Volumes = map[string]api.PoolVolume{"out": {Path: "/srv/out", Writable: true}, "data": {Path: "/srv/data"}}
	if args := s.agentArgs("p"); !slices.Equal(args, []string{"--volume", "data=/srv/data", "--writable-volume", "out=/srv/out"}) {
		t.Errorf("arguments of agents for volumes: %q", args)
	}
	// The state has them once its log can: until then nodes alone say what they have.
	if p := s.pools().Pools[0]; p.Volumes != "" || p.VolumesWritable != "" {
		t.Errorf("volumes in a log of format 1: %+v", p)
	}
	raised, err := s.state.Encode(&state.FormatRaised{Format: state.FormatPoolVolumes})
	if err != nil {
		t.Fatal(err)
	}
	s.state.Apply(1, 1, 1, [][]byte{raised})
	if p := s.pools().Pools[0]; p.Volumes != "tmpfs,data,out" || p.VolumesWritable != "out" {
		t.Errorf("volumes of the pool: %+v", p)
	}
	s.cfg.Pools[0].Volumes = nil
	if p := s.pools().Pools[0]; p.Volumes != "tmpfs" || p.VolumesWritable != "" {
		t.Errorf("volumes of a pool without: %+v", p)
	}
	want.Grace, want.Offerings = got[0].Grace, got[0].Offerings
	if p := got[0]; p.Spare != want.Spare || p.PriceFactor != want.PriceFactor || p.BudgetHour != want.BudgetHour || p.BudgetMonth != want.BudgetMonth ||
		p.Min != want.Min || p.Max != want.Max || p.MaxLaunching != want.MaxLaunching || p.IdleTimeout != want.IdleTimeout || p.BootTimeout != want.BootTimeout || p.Name != want.Name || p.Provider != want.Provider || p.Grace == 0 {
		t.Errorf("%+v, want %+v", p, want)
	}
}
