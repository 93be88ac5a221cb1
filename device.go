package muster

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// WholeDevice is one device in the thousandths that parts of one are counted in.
const WholeDevice = 1000

// Device is a number of equal devices that a node has, as four GPUs of one
// model. A node's devices are named by their place from 0 on, over all its entries in their order.
type Device struct {
	Kind  string `json:"kind" cbor:"1,keyasint"`
	Model string `json:"model,omitempty" cbor:"2,keyasint,omitempty"`
	Count int    `json:"count" cbor:"3,keyasint"`
	// Shared: parts of one may be asked for.
	Shared bool `json:"shared,omitempty" cbor:"4,keyasint,omitempty"`
}

// String is "4 gpu A100".
func (d Device) String() string {
	return strings.TrimSuffix(fmt.Sprintf("%d %s %s", d.Count, d.Kind, d.Model), " ")
}

// DeviceAsk is what a member needs of one kind of device.
type DeviceAsk struct {
	Kind string `json:"kind"`
	// Models that will do; none: any.
	Models []string `json:"models,omitempty"`
	// Count of whole ones, all of one model; 0: Part.
	Count int `json:"count,omitempty"`
	// Part of one device in thousandths. It never straddles two.
	Part int `json:"part,omitempty"`
}

// String is "2 gpu A100 or H100", "0.5 gpu".
func (a DeviceAsk) String() string {
	n := strconv.Itoa(a.Count)
	if a.Part > 0 {
		n = strconv.FormatFloat(float64(a.Part)/WholeDevice, 'g', -1, 64)
	}
	return strings.TrimSuffix(n+" "+a.Kind+" "+strings.Join(a.Models, " or "), " ")
}

// suits reports whether devices of the entry are of the kind asked for.
func (a *DeviceAsk) suits(d *Device) bool {
	return a.Kind == d.Kind && (a.Part == 0 || d.Shared) && (len(a.Models) == 0 || slices.Contains(a.Models, d.Model))
}

// NamedAsk is what a member needs of what has names on a node, beside amounts.
// A nil one is nothing.
type NamedAsk struct {
	// Cores are whole ones for it alone. They count as a thousand of CPU each as well.
	Cores   int
	Devices []DeviceAsk
	// Ports of the node.
	Ports []int
}

// Scarce reports whether it can lack on a node that has the amounts: cores never do.
func (a *NamedAsk) Scarce() bool { return a != nil && (len(a.Devices) > 0 || len(a.Ports) > 0) }

// String is ", 2 gpu, port 80", to follow amounts.
func (a *NamedAsk) String() string {
	if a == nil {
		return ""
	}
	var b strings.Builder
	if a.Cores > 0 {
		fmt.Fprintf(&b, ", %d whole cores", a.Cores)
	}
	for _, d := range a.Devices {
		b.WriteString(", " + d.String())
	}
	for _, p := range a.Ports {
		fmt.Fprintf(&b, ", port %d", p)
	}
	return b.String()
}

// Grant names what one allocation was given. Ports are those that it asked for.
type Grant struct {
	Cores   []int `json:"cores,omitempty" cbor:"1,keyasint,omitempty"`
	Devices []int `json:"devices,omitempty" cbor:"2,keyasint,omitempty"`
}

// Equal reports whether both name the same.
func (g Grant) Equal(o Grant) bool {
	return slices.Equal(g.Cores, o.Cores) && slices.Equal(g.Devices, o.Devices)
}

// AttributeGPUs is the attribute of nodes whose agent found GPUs that containers can be given: how
// many, as text.
const AttributeGPUs = "gpu.count"

// MissingGPUs is a sentence for operators if an offering has more GPUs than the agent of a node found
// there; "" if not. Containers that are granted the others fail.
func MissingGPUs(offered []Device, attributes map[string]string) string {
	want := 0
	for _, d := range offered {
		if d.Kind == "gpu" {
			want += d.Count
		}
	}
	found, _ := strconv.Atoi(attributes[AttributeGPUs])
	if want <= found || attributes[AttributeContainers] == "" {
		return ""
	}
	return fmt.Sprintf("its offering has %s, and its agent found %d that a container can be given; `muster-node devices` on the node says what it finds", Counted(want, "GPU"), found)
}

// DevicePlace names one device as its node counts them: Place from 0, within its kind.
type DevicePlace struct {
	Kind  string `json:"kind"`
	Place int    `json:"place"`
}

// Places are the granted devices as the node counts them. A grant counts all devices of a node
// together; has are those, as Device has them.
func (g Grant) Places(has []Device) (places []DevicePlace) {
	for _, number := range g.Devices {
		before, first := map[string]int{}, 0
		for i := range has {
			d := &has[i]
			if number < first+d.Count {
				places = append(places, DevicePlace{d.Kind, before[d.Kind] + number - first})
				break
			}
			before[d.Kind] += d.Count
			first += d.Count
		}
	}
	return places
}

// Taken is which of a node's cores, devices and ports are in use, as text:
// "cores=0,1 devices=1000,500 ports=80", devices by how many thousandths of each are. Empty: none. Equal
// texts mean the same, so that it can be compared, and be a key.
type Taken string

// taken is Taken, read.
type taken struct {
	cores []int // names, sorted
	parts []int // by device
	ports []int // sorted
}

func (t Taken) read() (u taken) {
	for word := range strings.FieldsSeq(string(t)) {
		k, list, _ := strings.Cut(word, "=")
		var out []int
		for w := range strings.SplitSeq(list, ",") {
			n, _ := strconv.Atoi(w)
			out = append(out, n)
		}
		switch k {
		case "cores":
			u.cores = out
		case "devices":
			u.parts = out
		case "ports":
			u.ports = out
		}
	}
	return u
}

func (u *taken) text() Taken {
	for len(u.parts) > 0 && u.parts[len(u.parts)-1] == 0 {
		u.parts = u.parts[:len(u.parts)-1]
	}
	var b []byte
	list := func(name string, of []int) {
		if len(of) == 0 {
			return
		}
		if len(b) > 0 {
			b = append(b, ' ')
		}
		b = append(append(b, name...), '=')
		for i, n := range of {
			if i > 0 {
				b = append(b, ',')
			}
			b = strconv.AppendInt(b, int64(n), 10)
		}
	}
	list("cores", u.cores)
	list("devices", u.parts)
	list("ports", u.ports)
	return Taken(b)
}

// part is how much of a device is in use.
func (u *taken) part(i int) int {
	if i < len(u.parts) {
		return u.parts[i]
	}
	return 0
}

func (u *taken) use(i, part int) {
	for len(u.parts) <= i {
		u.parts = append(u.parts, 0)
	}
	u.parts[i] += part
}

// WithoutCores is the text without the cores, which decide nothing but their own names.
func (t Taken) WithoutCores() Taken {
	if !strings.HasPrefix(string(t), "cores=") {
		return t
	}
	_, rest, _ := strings.Cut(string(t), " ")
	return Taken(rest)
}

// Parts is how many thousandths of each device are in use; devices past the end: none.
func (t Taken) Parts() []int { u := t.read(); return u.parts }

// Ports that are in use.
func (t Taken) Ports() []int { u := t.read(); return u.ports }

// Cores that are in use, by name.
func (t Taken) Cores() []int { u := t.read(); return u.cores }

// Give chooses what a member is given of a node with so many cores and these
// devices: the lowest cores; for a part of a device the one that it leaves the least of; for whole ones those of the
// entry with the fewest to spare. Short names what lacks instead, as "gpu A100" or "port 80".
func (t Taken) Give(ask *NamedAsk, cores int, devices []Device) (g Grant, short string) {
	if ask == nil {
		return g, ""
	}
	u := t.read()
	for _, p := range ask.Ports {
		if slices.Contains(u.ports, p) {
			return Grant{}, fmt.Sprintf("port %d", p)
		}
	}
	for i := range ask.Devices {
		if !u.give(&ask.Devices[i], devices, &g) {
			return Grant{}, shortOf(&ask.Devices[i])
		}
	}
	for c := 0; c < cores && len(g.Cores) < ask.Cores; c++ {
		if _, used := slices.BinarySearch(u.cores, c); !used {
			g.Cores = append(g.Cores, c)
		}
	}
	if len(g.Cores) < ask.Cores {
		return Grant{}, "cores"
	}
	return g, ""
}

// Lack is what Give is short of, "" if nothing; of devices with how many were asked for and the most that there were:
// whole ones of one entry, or the largest free part of one. Both are 0 of a port.
func (t Taken) Lack(ask *NamedAsk, devices []Device) (short string, asked, most float64) {
	if _, short = t.Give(ask, 0, devices); short == "" {
		return "", 0, 0
	}
	u, g := t.read(), Grant{}
	for i := range ask.Devices {
		a := &ask.Devices[i]
		had := float64(u.most(a, devices))
		switch {
		case u.give(a, devices, &g):
		case shortOf(a) != short: // a port lacks, which was looked at before
			return short, 0, 0
		case a.Part > 0:
			return short, float64(a.Part) / WholeDevice, had / WholeDevice
		default:
			return short, float64(a.Count), had
		}
	}
	return short, 0, 0
}

// most is how many whole devices of one entry are free of those that suit, or how many thousandths of one.
func (u *taken) most(ask *DeviceAsk, devices []Device) int {
	best, first := 0, 0
	for e := range devices {
		d := &devices[e]
		if ask.suits(d) {
			whole := 0
			for i := first; i < first+d.Count; i++ {
				if ask.Part > 0 {
					best = max(best, WholeDevice-u.part(i))
				} else if u.part(i) == 0 {
					whole++
				}
			}
			best = max(best, whole)
		}
		first += d.Count
	}
	return best
}

func shortOf(a *DeviceAsk) string {
	return strings.TrimSuffix(a.Kind+" "+strings.Join(a.Models, " or "), " ")
}

func (u *taken) give(ask *DeviceAsk, devices []Device, g *Grant) bool {
	best, bestLeft, first := -1, 0, 0
	for e := range devices {
		d := &devices[e]
		if ask.suits(d) {
			free := 0
			for i := first; i < first+d.Count; i++ {
				switch used := u.part(i); {
				case ask.Part > 0:
					if left := WholeDevice - used - ask.Part; left >= 0 && (best < 0 || left < bestLeft) {
						best, bestLeft = i, left
					}
				case used == 0:
					free++
				}
			}
			if left := free - ask.Count; ask.Part == 0 && left >= 0 && (best < 0 || left < bestLeft) {
				best, bestLeft = first, left
			}
		}
		first += d.Count
	}
	if best < 0 {
		return false
	}
	if ask.Part > 0 {
		u.use(best, ask.Part)
		g.Devices = append(g.Devices, best)
		return true
	}
	for i, n := best, 0; n < ask.Count; i++ {
		if u.part(i) == 0 {
			u.use(i, WholeDevice)
			g.Devices = append(g.Devices, i)
			n++
		}
	}
	return true
}

// Take adds a grant. Why says, with the name, what speaks against it: taken
// already, not there, or not what was asked for; then nothing is added.
func (t Taken) Take(ask *NamedAsk, g Grant, cores int, devices []Device) (after Taken, why string) {
	if ask == nil {
		if len(g.Cores)+len(g.Devices) > 0 {
			return t, "cores or devices are named that were not asked for"
		}
		return t, ""
	}
	u := t.read()
	for _, p := range ask.Ports {
		at, used := slices.BinarySearch(u.ports, p)
		if used {
			return t, fmt.Sprintf("port %d is taken", p)
		}
		u.ports = slices.Insert(u.ports, at, p)
	}
	if len(g.Cores) != ask.Cores {
		return t, fmt.Sprintf("%d cores are named, %d asked for", len(g.Cores), ask.Cores)
	}
	for _, c := range g.Cores {
		at, used := slices.BinarySearch(u.cores, c)
		switch {
		case used:
			return t, fmt.Sprintf("core %d is taken", c)
		case c < 0 || c >= cores:
			return t, fmt.Sprintf("there is no core %d", c)
		}
		u.cores = slices.Insert(u.cores, at, c)
	}
	rest := g.Devices
	for i := range ask.Devices {
		a := &ask.Devices[i]
		n, part := a.Count, WholeDevice
		if a.Part > 0 {
			n, part = 1, a.Part
		}
		if len(rest) < n {
			return t, fmt.Sprintf("%d devices are named, %s asked for", len(g.Devices), a)
		}
		entry := -1
		for _, d := range rest[:n] {
			e := entryOf(devices, d)
			switch {
			case e < 0:
				return t, fmt.Sprintf("there is no device %d", d)
			case !a.suits(&devices[e]) || entry >= 0 && e != entry:
				return t, fmt.Sprintf("%s %d is no %s", devices[e].Kind, d, shortOf(a))
			case u.part(d)+part > WholeDevice:
				return t, fmt.Sprintf("%s %d is taken", devices[e].Kind, d)
			}
			entry = e
			u.use(d, part)
		}
		rest = rest[n:]
	}
	if len(rest) > 0 {
		return t, "more devices are named than asked for"
	}
	return u.text(), ""
}

func entryOf(devices []Device, i int) int {
	if i < 0 {
		return -1
	}
	for e := range devices {
		if i < devices[e].Count {
			return e
		}
		i -= devices[e].Count
	}
	return -1
}

// Release takes a grant off again.
func (t Taken) Release(ask *NamedAsk, g Grant) Taken {
	if ask == nil {
		return t
	}
	u := t.read()
	drop := func(list []int, gone []int) []int {
		return slices.DeleteFunc(list, func(n int) bool { return slices.Contains(gone, n) })
	}
	u.cores, u.ports = drop(u.cores, g.Cores), drop(u.ports, ask.Ports)
	rest := g.Devices
	for i := range ask.Devices {
		n, part := ask.Devices[i].Count, WholeDevice
		if ask.Devices[i].Part > 0 {
			n, part = 1, ask.Devices[i].Part
		}
		for _, d := range rest[:min(n, len(rest))] {
			if d < len(u.parts) {
				u.parts[d] = max(u.parts[d]-part, 0)
			}
		}
		rest = rest[min(n, len(rest)):]
	}
	return u.text()
}

// Times is how many members that ask for this could be given it at once,
// bounded by limit, as far as devices and ports go.
func (t Taken) Times(ask *NamedAsk, cores int, devices []Device, limit int) int {
	if !ask.Scarce() {
		return limit
	}
	for n := range limit {
		g, short := t.Give(ask, cores, devices)
		if short != "" {
			return n
		}
		t, _ = t.Take(ask, g, cores, devices)
	}
	return limit
}
