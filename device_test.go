package muster_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/musterhq/muster"
)

func gpu(count, part int, models ...string) *muster.NamedAsk {
	return &muster.NamedAsk{Devices: []muster.DeviceAsk{{Kind: "gpu", Models: models, Count: count, Part: part}}}
}

// Parts share one device and never straddle two; whole ones are whole.
func TestPlaceDevices(t *testing.T) {
	shared := []muster.Device{{Kind: "gpu", Model: "A", Count: 2, Shared: true}, {Kind: "gpu", Model: "B", Count: 2}}
	for _, tc := range []struct {
		name  string
		taken muster.Taken
		ask   *muster.NamedAsk
		want  muster.Taken // after; "-": it lacks
	}{
		{"the first part of a fresh device", "", gpu(0, 500), "devices=500"},
		{"a part shares the device that it leaves the least of", "devices=300,500", gpu(0, 500), "devices=300,1000"},
		{"1.5 free as 0.5 + 1: one more half, and then a fresh one", "devices=500", gpu(0, 600), "devices=500,600"},
		{"0.4 + 0.4 free is no 0.5", "devices=600,600", gpu(0, 500), "-"},
		{"parts only where the offering shares", "", gpu(0, 500, "B"), "-"},
		{"one whole: where the fewest are left", "devices=0,0,1000", gpu(1, 0), "devices=0,0,1000,1000"},
		{"two whole ones of one model", "", gpu(2, 0, "B"), "devices=0,0,1000,1000"},
		{"two whole ones do not mix models", "devices=1000,0,1000", gpu(2, 0), "-"},
		{"a device in part use is not whole", "devices=1,1", gpu(1, 0, "A"), "-"},
		{"model A or B", "devices=1000,1000", gpu(2, 0, "A", "B"), "devices=1000,1000,1000,1000"},
		{"no such model", "", gpu(1, 0, "C"), "-"},
		{"no such kind", "", &muster.NamedAsk{Devices: []muster.DeviceAsk{{Kind: "fpga", Count: 1}}}, "-"},
		{"a port once", "ports=80", &muster.NamedAsk{Ports: []int{80}}, "-"},
		{"another port", "ports=80", &muster.NamedAsk{Ports: []int{443}}, "ports=80,443"},
		{"the lowest cores", "cores=0,2", &muster.NamedAsk{Cores: 2}, "cores=0,1,2,3"},
	} {
		g, short := tc.taken.Give(tc.ask, 4, shared)
		if (short != "") != (tc.want == "-") {
			t.Errorf("%s: short of %q", tc.name, short)
			continue
		}
		if short != "" {
			continue
		}
		after, why := tc.taken.Take(tc.ask, g, 4, shared)
		if why != "" || after != tc.want {
			t.Errorf("%s: %q, %s; want %q", tc.name, after, why, tc.want)
		}
		if back := after.Release(tc.ask, g); back != tc.taken {
			t.Errorf("%s: released it is %q, was %q", tc.name, back, tc.taken)
		}
	}
}

// What lacks is what Give says, with how much there was at best: whole devices of one entry, or the largest part of one.
func TestLack(t *testing.T) {
	devices := []muster.Device{{Kind: "gpu", Model: "A", Count: 2, Shared: true}, {Kind: "gpu", Model: "B", Count: 3}}
	both := &muster.NamedAsk{Devices: []muster.DeviceAsk{{Kind: "gpu", Models: []string{"A"}, Count: 1}, {Kind: "gpu", Count: 3}}}
	for _, tc := range []struct {
		name        string
		taken       muster.Taken
		ask         *muster.NamedAsk
		short       string
		asked, most float64
	}{
		{"nothing", "", gpu(2, 0), "", 0, 0},
		{"no ask", "", nil, "", 0, 0},
		{"whole ones of one entry, not of all", "devices=0,1000,0,1000", gpu(4, 0), "gpu", 4, 2},
		{"a part in use is not whole", "devices=1,1", gpu(1, 0, "A"), "gpu A", 1, 0},
		{"the largest free part", "devices=600,700", gpu(0, 500, "A"), "gpu A", 0.5, 0.4},
		{"no parts of what is not shared", "", gpu(0, 500, "B"), "gpu B", 0.5, 0},
		{"the second, with the first given", "devices=0,1000,1000", both, "gpu", 3, 2},
		{"a port, which is looked at first", "devices=1000,1000 ports=80", &muster.NamedAsk{Ports: []int{80}, Devices: gpu(1, 0, "A").Devices}, "port 80", 0, 0},
		{"a port alone", "ports=80", &muster.NamedAsk{Ports: []int{80}}, "port 80", 0, 0},
	} {
		_, short := tc.taken.Give(tc.ask, 0, devices)
		if got, asked, most := tc.taken.Lack(tc.ask, devices); got != tc.short || got != short || asked != tc.asked || most != tc.most {
			t.Errorf("%s: %q, %g asked, at most %g; Give says %q", tc.name, got, asked, most, short)
		}
	}
}

// What is taken is refused by its name.
func TestTakenDeviceIsRefusedByName(t *testing.T) {
	devices := []muster.Device{{Kind: "gpu", Model: "A", Count: 2, Shared: true}}
	for _, tc := range []struct {
		taken muster.Taken
		ask   *muster.NamedAsk
		grant muster.Grant
		want  string
	}{
		{"devices=0,1000", gpu(1, 0), muster.Grant{Devices: []int{1}}, "gpu 1 is taken"},
		{"devices=600", gpu(0, 500), muster.Grant{Devices: []int{0}}, "gpu 0 is taken"},
		{"", gpu(1, 0), muster.Grant{Devices: []int{2}}, "there is no device 2"},
		{"", gpu(2, 0), muster.Grant{Devices: []int{1, 1}}, "gpu 1 is taken"},
		{"", gpu(1, 0, "B"), muster.Grant{Devices: []int{0}}, "gpu 0 is no gpu B"},
		{"", gpu(2, 0), muster.Grant{Devices: []int{0}}, "1 devices are named, 2 gpu asked for"},
		{"", gpu(1, 0), muster.Grant{Devices: []int{0, 1}}, "more devices are named than asked for"},
		{"cores=1", &muster.NamedAsk{Cores: 1}, muster.Grant{Cores: []int{1}}, "core 1 is taken"},
		{"", &muster.NamedAsk{Cores: 1}, muster.Grant{Cores: []int{4}}, "there is no core 4"},
		{"", &muster.NamedAsk{Cores: 1}, muster.Grant{}, "0 cores are named, 1 asked for"},
		{"ports=80", &muster.NamedAsk{Ports: []int{80}}, muster.Grant{}, "port 80 is taken"},
		{"", nil, muster.Grant{Cores: []int{0}}, "cores or devices are named that were not asked for"},
	} {
		if after, why := tc.taken.Take(tc.ask, tc.grant, 4, devices); why != tc.want || after != tc.taken {
			t.Errorf("%q and %+v: %q, want %q", tc.taken, tc.grant, why, tc.want)
		}
	}
}

// Whatever is given and released in any order, nothing is given twice, and the
// text of what is left is that of what is held.
func TestGivenOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		devices := []muster.Device{{Kind: "gpu", Model: "A", Count: 3, Shared: true}, {Kind: "gpu", Model: "B", Count: 2}}
		type held struct {
			ask *muster.NamedAsk
			g   muster.Grant
		}
		var now muster.Taken
		var all []held
		for range rapid.IntRange(1, 30).Draw(t, "n") {
			if len(all) > 0 && rapid.IntRange(0, 2).Draw(t, "release") == 0 {
				i := rapid.IntRange(0, len(all)-1).Draw(t, "which")
				now = now.Release(all[i].ask, all[i].g)
				all = append(all[:i], all[i+1:]...)
			} else {
				ask := &muster.NamedAsk{Cores: rapid.IntRange(0, 2).Draw(t, "cores")}
				switch rapid.IntRange(0, 3).Draw(t, "kind") {
				case 0:
					ask.Devices = gpu(rapid.IntRange(1, 2).Draw(t, "count"), 0).Devices
				case 1:
					ask.Devices = gpu(0, rapid.IntRange(1, 1000).Draw(t, "part")).Devices
				case 2:
					ask.Ports = []int{rapid.IntRange(1, 4).Draw(t, "port")}
				}
				g, short := now.Give(ask, 4, devices)
				if short != "" {
					continue
				}
				var why string
				if now, why = now.Take(ask, g, 4, devices); why != "" {
					t.Fatalf("given and refused: %s", why)
				}
				all = append(all, held{ask, g})
			}
			var again muster.Taken
			for _, h := range all {
				var why string
				if again, why = again.Take(h.ask, h.g, 4, devices); why != "" {
					t.Fatalf("two hold the same: %s", why)
				}
			}
			if again != now {
				t.Fatalf("%q is taken, held is %q", now, again)
			}
		}
	})
}

// A grant counts all devices of a node together, an agent those of each kind.
func TestPlaces(t *testing.T) {
	has := []muster.Device{{Kind: "gpu", Model: "A", Count: 2}, {Kind: "fpga", Count: 1}, {Kind: "gpu", Model: "B", Count: 2}}
	got := muster.Grant{Devices: []int{4, 0, 2}}.Places(has)
	want := []muster.DevicePlace{{Kind: "gpu", Place: 3}, {Kind: "gpu"}, {Kind: "fpga"}}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := (muster.Grant{Devices: []int{9}}).Places(has); len(got) != 0 {
		t.Errorf("%v", got)
	}
}

func TestMissingGPUs(t *testing.T) {
	has := []muster.Device{{Kind: "gpu", Count: 2}, {Kind: "fpga", Count: 1}}
	for _, x := range []struct {
		attributes map[string]string
		missing    bool
	}{
		{map[string]string{"containers": "crun 1"}, true},
		{map[string]string{"containers": "crun 1", "gpu.count": "1"}, true},
		{map[string]string{"containers": "crun 1", "gpu.count": "2"}, false},
		{map[string]string{"containers": "crun 1", "gpu.count": "x"}, true},
		{map[string]string{}, false}, // it runs no containers: a process sees all devices
	} {
		if got := muster.MissingGPUs(has, x.attributes); (got != "") != x.missing {
			t.Errorf("%v: %q", x.attributes, got)
		}
	}
}
