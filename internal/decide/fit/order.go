package fit

import "github.com/musterhq/muster"

// Score says how tightly packed a node is when this much of its capacity is
// free: 0 for an empty node, 1 for a full one, in between the mean of the used
// share over the dimensions that the node has. Members go where the score is
// highest with the member counted in, so that small work fills gaps and whole
// nodes stay free for large work, or idle until they are given back.
func Score(capacity, free muster.Resources) float64 {
	sum, dims := 0.0, 0
	add := func(capacity, free int64) {
		if capacity > 0 {
			sum += 1 - float64(free)/float64(capacity)
			dims++
		}
	}
	add(int64(capacity.CPU), int64(free.CPU))
	add(int64(capacity.Memory), int64(free.Memory))
	add(int64(capacity.Disk), int64(free.Disk))
	if dims == 0 {
		return 0
	}
	return sum / float64(dims)
}
