package muster

import "fmt"

// MilliCPU is a share of processor time: 1000 is one core.
type MilliCPU int64

// Bytes is an amount of memory or disk.
type Bytes int64

// Binary multiples.
const (
	KiB Bytes = 1 << 10
	MiB Bytes = 1 << 20
	GiB Bytes = 1 << 30
	TiB Bytes = 1 << 40
)

// String is the amount in the largest unit that leaves no long fraction.
func (b Bytes) String() string {
	for _, u := range []struct {
		size Bytes
		name string
	}{{TiB, "TiB"}, {GiB, "GiB"}, {MiB, "MiB"}, {KiB, "KiB"}} {
		if b >= u.size {
			if b%u.size == 0 {
				return fmt.Sprintf("%d%s", b/u.size, u.name)
			}
			return fmt.Sprintf("%.1f%s", float64(b)/float64(u.size), u.name)
		}
	}
	return fmt.Sprintf("%dB", int64(b))
}

// String is the number of cores.
func (c MilliCPU) String() string {
	if c%1000 == 0 {
		return fmt.Sprintf("%d", c/1000)
	}
	return fmt.Sprintf("%g", float64(c)/1000)
}

// Resources is what an allocation asks for, a node has, or is in use.
type Resources struct {
	CPU    MilliCPU `json:"cpu" cbor:"1,keyasint,omitempty"`
	Memory Bytes    `json:"memory" cbor:"2,keyasint,omitempty"`
	Disk   Bytes    `json:"disk" cbor:"3,keyasint,omitempty"`
}

// Add is r + o.
func (r Resources) Add(o Resources) Resources {
	return Resources{r.CPU + o.CPU, r.Memory + o.Memory, r.Disk + o.Disk}
}

// Sub is r - o; dimensions may become negative.
func (r Resources) Sub(o Resources) Resources {
	return Resources{r.CPU - o.CPU, r.Memory - o.Memory, r.Disk - o.Disk}
}

// By is n times r.
func (r Resources) By(n int) Resources {
	return Resources{r.CPU * MilliCPU(n), r.Memory * Bytes(n), r.Disk * Bytes(n)}
}

// Fits reports whether r fits into free.
func (r Resources) Fits(free Resources) bool {
	return r.CPU <= free.CPU && r.Memory <= free.Memory && r.Disk <= free.Disk
}

// Short names the first dimension in which r does not fit into free, or "".
func (r Resources) Short(free Resources) string {
	switch {
	case r.CPU > free.CPU:
		return "cpu"
	case r.Memory > free.Memory:
		return "memory"
	case r.Disk > free.Disk:
		return "disk"
	}
	return ""
}

// Times is how many of r fit into free at once; bounded by limit. An empty r
// fits limit times.
func (r Resources) Times(free Resources, limit int) int {
	n := int64(limit)
	for _, d := range [...][2]int64{
		{int64(r.CPU), int64(free.CPU)}, {int64(r.Memory), int64(free.Memory)}, {int64(r.Disk), int64(free.Disk)},
	} {
		if d[0] > 0 {
			n = min(n, max(d[1], 0)/d[0])
		}
	}
	return int(n)
}

// String is for people: "0.5 cpu, 64MiB memory".
func (r Resources) String() string {
	s := fmt.Sprintf("%s cpu, %s memory", r.CPU, r.Memory)
	if r.Disk > 0 {
		s += fmt.Sprintf(", %s disk", r.Disk)
	}
	return s
}
