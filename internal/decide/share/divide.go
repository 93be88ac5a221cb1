package share

import (
	"cmp"
	"math"
	"slices"
)

// Party is one class that starts members, all of one size.
type Party struct {
	// Name breaks ties, after the weight.
	Name string
	// Weight of it; who has none is served when nobody else waits.
	Weight int
	// Running is what it has now, Waiting what it wants in addition. Negative ones count as none.
	Running, Waiting int
}

// Divide says how many members of each party start when there is room for so
// many. It gives room one by one to the party that, with one more, has the least for
// its weight; the heavier first, then by name. The cost is that of the parties, not of the members.
func Divide(room int, parties []Party) []int {
	starts := make([]int, len(parties))
	order := make([]int, 0, len(parties))
	weightless := make([]int, 0, len(parties))
	waiting := 0
	for i := range parties {
		p := &parties[i]
		if p.Waiting <= 0 {
			continue
		}
		waiting += p.Waiting
		if p.Weight > 0 {
			order = append(order, i)
		} else {
			weightless = append(weightless, i)
		}
	}
	if waiting <= room {
		for i := range parties {
			starts[i] = max(parties[i].Waiting, 0)
		}
		return starts
	}
	room -= level(room, parties, order, starts, func(p *Party) int { return p.Weight })
	// Those without a weight divide what is left evenly.
	level(room, parties, weightless, starts, func(*Party) int { return 1 })
	return starts
}

// level raises the parties in order to one level of what they have for their weight, and says how much room that took.
func level(room int, parties []Party, order []int, starts []int, weight func(*Party) int) (taken int) {
	if room <= 0 || len(order) == 0 {
		return 0
	}
	// at is how many members a party starts below a level.
	at := func(i int, high float64) int {
		p := &parties[i]
		n := math.Floor(high*float64(weight(p))) - float64(max(p.Running, 0))
		return int(min(max(n, 0), float64(p.Waiting)))
	}
	sum := func(high float64) (n int) {
		for _, i := range order {
			n += at(i, high)
		}
		return n
	}
	// The highest level that all fit below; a little less, as the sums are exact and the level is not.
	low, high := 0.0, 1.0
	for high < math.MaxInt32 && sum(high) <= room {
		full := true
		for _, i := range order {
			full = full && at(i, high) == parties[i].Waiting
		}
		if full {
			break
		}
		low, high = high, 2*high
	}
	for range 64 {
		if mid := (low + high) / 2; sum(mid) <= room {
			low = mid
		} else {
			high = mid
		}
	}
	low -= low * 1e-9
	for _, i := range order {
		starts[i] = at(i, low)
		taken += starts[i]
	}
	// What is left is less than one for each party and a rounding: one by one.
	better := func(a, b int) int {
		pa, pb := &parties[a], &parties[b]
		wa, wb := weight(pa), weight(pb)
		na, nb := max(pa.Running, 0)+starts[a]+1, max(pb.Running, 0)+starts[b]+1
		return cmp.Or(cmp.Compare(na*wb, nb*wa), cmp.Compare(wb, wa), cmp.Compare(pa.Name, pb.Name))
	}
	for taken < room {
		open := slices.DeleteFunc(slices.Clone(order), func(i int) bool { return starts[i] >= parties[i].Waiting })
		if len(open) == 0 {
			break
		}
		starts[slices.MinFunc(open, better)]++
		taken++
	}
	return taken
}
