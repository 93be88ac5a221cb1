package system

import (
	"math"
	"os"
	"strconv"
	"strings"
)

// IDs is how many user ids this user namespace has, from 0 on; of groups, if group is set. No
// process can have a higher one. Where the map cannot be read there is no bound, and the kernel
// decides.
func IDs(group bool) uint64 {
	name := "/proc/self/uid_map"
	if group {
		name = "/proc/self/gid_map"
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return math.MaxUint32
	}
	return idsOf(string(b))
}

// idsOf reads a map in the kernel's form: each line is the first id inside, the first id outside,
// and how many there are. The maps of containers have no gaps.
func idsOf(text string) (n uint64) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) != 3 {
			return math.MaxUint32
		}
		first, err := strconv.ParseUint(f[0], 10, 32)
		count, wrong := strconv.ParseUint(f[2], 10, 32)
		if err != nil || wrong != nil {
			return math.MaxUint32
		}
		n = max(n, first+count)
	}
	return n
}
