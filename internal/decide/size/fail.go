package size

import (
	"fmt"
	"strings"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/state"
)

// fail ends the jobs of a demand if no node that could ever be had fits them.
// False if that is not certain, or if they have run before: what they ran on
// may come back into the configuration.
func (p *planner) fail(d *demand) bool {
	v := p.fits(d.shape)
	if v.ok || !v.known {
		return false
	}
	d.parts.Scan(func(x *part) bool {
		j := x.waiter.row
		if again := len(p.out.Fail) > 0 && p.out.Fail[len(p.out.Fail)-1].UID == j.UID; !x.waiter.tried && j.Env == nil && !again {
			p.out.Fail = append(p.out.Fail, Fail{UID: j.UID, Key: j.Key, Modified: j.Modified, Reason: v.why})
		}
		return true
	})
	return d.tried == 0
}

// Fits tells whether a member of the run could ever be placed: on an offering
// of a pool that it may use, or on a node that is there. Why is one sentence: the first of those, or what it is short
// of; known is false when a provider has not said yet what it offers.
func Fits(snap *state.Snapshot, run *state.Run) (ok, known bool, why string) {
	return fits(snap, fit.ShapeOf(run))
}

func fits(snap *state.Snapshot, shape *fit.Shape) (ok, known bool, why string) {
	known = true
	var pools []*state.Pool
	snap.Pools(func(q *state.Pool) bool {
		if shape.Pool == "" || shape.Pool == q.Name {
			pools = append(pools, q)
		}
		return true
	})
	var meets, all []*muster.Offering // those that meet the constraints; those of its pools
	filtered, where := "", ""
	for _, q := range pools {
		listed := false
		snap.Offerings(func(o *muster.Offering) bool {
			listed = listed || o.Provider == q.Provider
			if !q.Covers(o) {
				return true
			}
			all = append(all, o)
			switch obstacle, _ := fit.OfferingFits(shape, q, o); obstacle.Kind {
			case fit.None:
				if ok = true; where == "" {
					where = "a member fits " + string(o.Name)
				}
			case fit.Filtered:
				if filtered == "" {
					filtered = obstacle.What
				}
				return true
			}
			meets = append(meets, o)
			return true
		})
		known = known && listed
	}
	snap.LiveNodes(func(n *state.Node) bool {
		if !ok && fit.Feasible(shape, n) == "" && shape.Short(fit.Space{Resources: n.Capacity}, n.Devices()) == "" {
			ok, where = true, "a member fits node "+string(n.ID)
		}
		return !ok
	})
	if ok {
		return true, true, where
	}
	return false, known && (len(pools) > 0 || shape.Pool != ""), unfit(shape, len(pools), all, meets, filtered)
}

// unfit is the sentence about a member that fits nothing.
func unfit(shape *fit.Shape, pools int, all, meets []*muster.Offering, filtered string) string {
	switch {
	case pools == 0 && shape.Pool != "":
		return fmt.Sprintf("no pool %s is configured", shape.Pool)
	case pools == 0:
		return "no pool is configured"
	case len(all) == 0:
		return "its pools have no offerings"
	case len(meets) == 0:
		return fmt.Sprintf("no offering meets %s", filtered)
	}
	// The dimension in which even the largest is too small, and that one's name.
	among := ""
	if len(meets) < len(all) {
		among = " that meets its constraints"
	}
	for _, dim := range []struct {
		name string
		of   func(muster.Resources) int64
		text func(muster.Resources) string
	}{
		{"cpu", func(r muster.Resources) int64 { return int64(r.CPU) }, func(r muster.Resources) string { return r.CPU.String() + " cpu" }},
		{"memory", func(r muster.Resources) int64 { return int64(r.Memory) }, func(r muster.Resources) string { return r.Memory.String() + " memory" }},
		{"disk", func(r muster.Resources) int64 { return int64(r.Disk) }, func(r muster.Resources) string { return r.Disk.String() + " disk" }},
	} {
		largest := meets[0]
		for _, o := range meets[1:] {
			if dim.of(o.Capacity) > dim.of(largest.Capacity) {
				largest = o
			}
		}
		if dim.of(shape.Ask) > dim.of(largest.Capacity) {
			return fmt.Sprintf("a member needs %s; the largest offering%s, %s, has %s",
				dim.text(shape.Ask), among, largest.Name, dim.text(largest.Capacity))
		}
	}
	// Each dimension fits somewhere, and not all of them on one.
	short := make([]string, 0, len(meets))
	seen := map[muster.OfferingName]bool{}
	for _, o := range meets {
		if !seen[o.Name] && len(short) < 4 {
			seen[o.Name] = true
			short = append(short, fmt.Sprintf("%s is short of %s", o.Name, shape.Short(fit.Space{Resources: o.Capacity}, o.Devices)))
		}
	}
	return fmt.Sprintf("a member needs %s%s; no offering%s has all of it: %s", shape.Ask, shape.Names.String(), among, strings.Join(short, ", "))
}
