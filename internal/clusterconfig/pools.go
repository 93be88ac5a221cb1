package clusterconfig

import (
	"math"
	"path/filepath"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

// Pools is the fact that sets the pools of a configuration in a log of a format. It replaces all
// pools of the state. Durations are in microseconds and money in millionths there.
func Pools(config *api.ServerConfig, format state.Format) *state.PoolsSet {
	f := &state.PoolsSet{}
	static := map[string]bool{}
	for i := range config.Providers {
		static[config.Providers[i].Name] = config.Providers[i].Type == api.ProviderStatic
	}
	for i := range config.Pools {
		p := &config.Pools[i]
		pool := state.Pool{
			Name: muster.PoolName(p.Name), Provider: muster.ProviderName(p.Provider), Min: p.Min, Max: p.Max, MaxLaunching: p.MaxLaunching,
			IdleTimeout: muster.Time(p.IdleTimeout.Std().Microseconds()), BootTimeout: muster.Time(p.BootTimeout.Std().Microseconds()),
			Grace: muster.Time(p.Grace.Std().Microseconds()),
			Fence: muster.Time(p.Fence.Std().Microseconds()), Static: static[p.Provider],
			Ready: p.Ready, ReadyTimeout: muster.Time(p.ReadyTimeout.Std().Microseconds()), Sideline: muster.Time(p.Sideline.Std().Microseconds()),
			Spare: p.Spare, PriceFactor: p.PriceFactor,
			BudgetHour: muster.Price(math.Round(p.Budget.PerHour * 1e6)), BudgetMonth: int64(math.Round(p.Budget.PerMonth * 1e6)),
			Spread: p.Placement == api.PlacementSpread, Meta: p.Meta, Runtime: runtimeName(p.OCIRuntime),
		}
		// Without it the loops decide by what nodes of the pool have said.
		if format >= state.FormatPoolVolumes {
			pool.Volumes, pool.VolumesWritable = volumeAttributes(p)
		}
		// Without it idle nodes are destroyed.
		if format >= state.FormatStopped {
			pool.StopMost, pool.StopTime = p.Stop.Most, muster.Time(p.Stop.Timeout.Std().Microseconds())
		}
		for _, o := range p.Offerings {
			pool.Offerings = append(pool.Offerings, muster.OfferingName(o))
		}
		f.Pools = append(f.Pools, pool)
	}
	return f
}

// volumeAttributes are the attributes for volumes of a pool's nodes that start with this
// configuration.
func volumeAttributes(p *api.PoolSpec) (read, write string) {
	writable := make(map[string]bool, len(p.Volumes))
	for name, v := range p.Volumes {
		writable[name] = v.Writable
	}
	return muster.VolumeAttributes(writable)
}

// runtimeName is what is known of a runtime program before there is a node of its pool. A path says
// nothing: the program behind it may have any name.
func runtimeName(program string) string {
	if filepath.IsAbs(program) {
		return ""
	}
	return program
}

// Shares is the fact that sets the rules of fair share of a configuration.
func Shares(config *api.ServerConfig) *state.SharesSet {
	f := &state.SharesSet{}
	for _, r := range config.Shares {
		f.Rules = append(f.Rules, state.ShareRule{Match: r.Match, Class: r.Class, Weight: r.Weight})
	}
	return f
}
