package fit_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/decide/fit/fittest"
	"github.com/musterhq/muster/internal/state"
)

func shape(t *testing.T, words ...string) *fit.Shape {
	t.Helper()
	c := fittest.New(t, 1)
	f, err := fittest.Job("a", strings.Fields(strings.Join(words, " "))...)
	if err != nil {
		t.Fatal(err)
	}
	c.Apply(f)
	return fit.ShapeOf(c.Snapshot().JobByUID("a").Run)
}

func TestAttributesAreMerged(t *testing.T) {
	c := fittest.Read(t, `
node n1 pool=gpu offering=big zone=z1 market=spot provider=aws arch=amd64 says.pool=mine says.zone=mine says.market=mine
node n2 pool=gpu offering=big says.zone=mine arch=arm64
`)
	for _, tc := range []struct {
		node muster.NodeID
		want map[string]string
	}{
		{"n1", map[string]string{"pool": "gpu", "offering": "big", "zone": "z1", "market": "spot", "provider": "aws", "arch": "amd64"}},
		// It has no zone, whatever its agent says.
		{"n2", map[string]string{"pool": "gpu", "offering": "big", "market": "on-demand", "provider": "p", "arch": "arm64"}},
	} {
		n := c.Snapshot().Node(tc.node)
		for _, name := range []string{"pool", "offering", "zone", "market", "provider", "arch", "os", ""} {
			v, set := fit.Attribute(n, name)
			if w, is := tc.want[name]; v != w && set || set != is {
				t.Errorf("%s: %s is %q, %v; want %q, %v", tc.node, name, v, set, w, is)
			}
		}
	}
}

// What keeps a member away is named in a fixed order: closed, filtered, avoided, short.
func TestCheckNamesTheFirstObstacle(t *testing.T) {
	c := fittest.Read(t, "node n1 cpu=1 memory=1GiB zone=z1\nnode n2 cpu=1 memory=1GiB zone=z1\nhealth n2 lost")
	n1, n2 := c.Snapshot().Node("n1"), c.Snapshot().Node("n2")
	wrong, right := shape(t, "cpu=2", "needs zone = z2"), shape(t, "cpu=2", "needs zone = z1")
	small, wide := shape(t, "cpu=1"), shape(t, "cpu=1", "memory=2GiB", "disk=1GiB")
	avoid := []muster.NodeID{"n9", "n1"}
	for i, tc := range []struct {
		s     *fit.Shape
		n     *state.Node
		avoid []muster.NodeID
		want  fit.Obstacle
	}{
		{wrong, n2, avoid, fit.Obstacle{Kind: fit.Closed, What: "lost"}},
		{wrong, n1, avoid, fit.Obstacle{Kind: fit.Filtered, What: "zone = z2"}},
		{right, n1, avoid, fit.Obstacle{Kind: fit.Avoided}},
		{right, n1, nil, fit.Obstacle{Kind: fit.Short, What: "cpu"}},
		{wide, n1, nil, fit.Obstacle{Kind: fit.Short, What: "memory"}},
		{small, n1, nil, fit.Obstacle{}},
	} {
		if got := fit.Check(tc.s, tc.n, fit.Room(tc.n), tc.avoid); got != tc.want {
			t.Errorf("%d: got %+v, want %+v", i, got, tc.want)
		}
	}
}

// Unset never equals, and differs from everything.
func TestOperators(t *testing.T) {
	c := fittest.Read(t, "node n1 cpu=1 memory=1GiB os=linux empty=")
	n := c.Snapshot().Node("n1")
	for _, tc := range []struct {
		needs api.ConstraintSpec
		want  string
	}{
		{api.ConstraintSpec{Attribute: "os", Value: "linux"}, ""},
		{api.ConstraintSpec{Attribute: "os", Op: "=", Value: "Linux"}, "os = Linux"},
		{api.ConstraintSpec{Attribute: "os", Op: "!=", Value: "linux"}, "os != linux"},
		{api.ConstraintSpec{Attribute: "os", Op: "!=", Value: "plan9"}, ""},
		{api.ConstraintSpec{Attribute: "os", Op: "in", Values: []string{"bsd", "linux"}}, ""},
		{api.ConstraintSpec{Attribute: "os", Op: "in", Values: []string{"bsd", "plan9"}}, "os in bsd, plan9"},
		{api.ConstraintSpec{Attribute: "os", Op: "is-set"}, ""},
		{api.ConstraintSpec{Attribute: "nix", Op: "="}, "nix = "},
		{api.ConstraintSpec{Attribute: "nix", Op: "!=", Value: "foo"}, ""},
		{api.ConstraintSpec{Attribute: "nix", Op: "is-set"}, "nix is set"},
		{api.ConstraintSpec{Attribute: "nix", Op: "in", Values: []string{""}}, "nix in "},
		{api.ConstraintSpec{Attribute: "empty", Op: "="}, ""},
		{api.ConstraintSpec{Attribute: "os", Op: "~", Value: "l.*"}, "os ~ l.*"}, // an operator of a later version
	} {
		s := &fit.Shape{Constraints: []muster.Constraint{{Attribute: tc.needs.Attribute, Op: tc.needs.Op, Value: tc.needs.Value, Values: tc.needs.Values}}}
		if got := fit.Feasible(s, n); got != tc.want {
			t.Errorf("%+v: got %q, want %q", tc.needs, got, tc.want)
		}
	}
}

// An image that is for one architecture keeps its job away from nodes and offerings of another; the user,
// who has written no condition, is told where it comes from. Unknown images go anywhere.
func TestImagesHaveArchitectures(t *testing.T) {
	c := fittest.Read(t, "node n1 arch=amd64 containers=crun\nnode n2 arch=arm64 containers=crun")
	pool := &state.Pool{Name: "p", Provider: "p"}
	for _, tc := range []struct{ architectures, n1, n2 string }{
		{"", "", ""}, {"amd64", "", "arch = amd64 (its image)"}, {"arm64", "arch = arm64 (its image)", ""}, {"amd64 arm64", "", ""},
		{"riscv64 s390x", "arch in riscv64, s390x (its image)", "arch in riscv64, s390x (its image)"},
	} {
		f, err := fittest.Job("a")
		if err != nil {
			t.Fatal(err)
		}
		f.Spec.Image, f.Spec.Command = "web:1", []string{"serve"}
		run, err := state.NewImageRun(f.Key, f.UID, 1, f.Spec, strings.Fields(tc.architectures))
		if err != nil {
			t.Fatal(err)
		}
		s := fit.ShapeOf(run)
		for node, want := range map[muster.NodeID]string{"n1": tc.n1, "n2": tc.n2} {
			n := c.Snapshot().Node(node)
			if got := fit.Feasible(s, n); got != want {
				t.Errorf("%s on %s: %q", tc.architectures, node, got)
			}
			o := muster.Offering{Provider: "p", Name: "o", Capacity: muster.Resources{CPU: 64000, Memory: 64 * muster.GiB, Disk: 64 * muster.GiB}, Attributes: map[string]string{"arch": n.Attributes["arch"], "containers": "crun"}}
			if got, _ := fit.OfferingFits(s, pool, &o); got.What != want {
				t.Errorf("%s of an offering for %s: %+v", tc.architectures, n.Attributes["arch"], got)
			}
		}
		if plain, err := state.NewRun(f.Key, f.UID, 1, f.Spec); err != nil || (plain.Shape == run.Shape) != (tc.architectures == "") {
			t.Errorf("%s: shapes %s and %s: %v", tc.architectures, plain.Shape, run.Shape, err)
		}
	}
}

func TestOfferingFits(t *testing.T) {
	pool := &state.Pool{Name: "gpu", Provider: "aws", Offerings: []muster.OfferingName{"big"}}
	offering := muster.Offering{Provider: "aws", Name: "big", Zone: "z1", Market: muster.Spot,
		Capacity: muster.Resources{CPU: 4000, Memory: 8 * muster.GiB}, Attributes: map[string]string{"model": "x"}}
	for _, tc := range []struct{ job, want string }{
		{"cpu=4 memory=8GiB", "{0 } []"},
		{"cpu=4.5", "{4 cpu} []"},
		{"disk=1GiB", "{4 disk} []"},
		{"pool=gpu needs zone in z1, z2; market = spot", "{0 } []"},
		{"pool=cpu", "{2 pool = cpu} []"},
		{"needs zone = z2", "{2 zone = z2} []"},
		{"needs market != spot", "{2 market != spot} []"},
		{"needs model = x", "{0 } []"},
		{"needs model != x", "{2 model != x} []"},
		// Only an agent can tell.
		{"needs arch = arm64; os is-set", "{0 } [arch os]"},
		{"needs arch = arm64; zone = z2", "{2 zone = z2} []"},
	} {
		c := fittest.New(t, 1)
		c.Do("job a " + tc.job)
		o, unsure := fit.OfferingFits(fit.ShapeOf(c.Snapshot().JobByUID("a").Run), pool, &offering)
		if got := fmt.Sprintf("%v %v", o, unsure); got != tc.want {
			t.Errorf("%s: got %s, want %s", tc.job, got, tc.want)
		}
	}
	// What makes containers is known of pools that say it.
	program, isolation := muster.RuntimeNeeds, func(i muster.Isolation) muster.Constraint { return i.Needs()[len(i.Needs())-1] }
	for _, tc := range []struct {
		runtime string
		needs   muster.Constraint
		want    string
	}{
		{"", program("runsc"), "{0 } [containers]"},
		{"runsc", program("runsc"), "{0 } []"},
		{"runsc", program("crun"), `{2 containers regexp ^crun( |$)} []`},
		{"runsc", program("youki"), "{0 } [containers]"},
		{"runsc", muster.Constraint{Attribute: muster.AttributeContainers, Op: muster.OpIsSet}, "{0 } []"},
		{"runsc", muster.Constraint{Attribute: muster.AttributeContainers, Op: muster.OpRegexp, Value: "runsc release-2"}, "{0 } [containers]"},
		{"runsc", isolation("runsc"), "{0 } []"},
		{"runsc", isolation(muster.IsolationContainer), "{0 } []"},
		{"runsc", isolation(muster.IsolationUserNamespace), "{2 isolation = container-userns} []"},
		{"crun", isolation(muster.IsolationUserNamespace), "{0 } [isolation]"},
		{"crun", program("runsc"), `{2 containers regexp ^runsc( |$)} []`},
		{"none", muster.Constraint{Attribute: muster.AttributeContainers, Op: muster.OpIsSet}, "{2 containers is set} []"},
		{"none", isolation("runsc"), "{2 isolation = runsc} []"},
		{"none", muster.Constraint{Attribute: "arch", Op: muster.OpIsSet}, "{0 } [arch]"},
	} {
		p := *pool
		p.Runtime = tc.runtime
		o, unsure := fit.OfferingFits(&fit.Shape{Constraints: []muster.Constraint{tc.needs}}, &p, &offering)
		if got := fmt.Sprintf("%v %v", o, unsure); got != tc.want {
			t.Errorf("%s, %s: got %s, want %s", tc.runtime, tc.needs.String(), got, tc.want)
		}
	}
	// The same of volumes. A log of an older format has none of the pool.
	reads := func(write bool, name string) muster.Constraint {
		if write {
			return muster.VolumeNeeds(nil, []string{name})[0]
		}
		return muster.VolumeNeeds([]string{name}, nil)[0]
	}
	for _, tc := range []struct {
		volumes, writable, runtime string
		needs                      muster.Constraint
		want                       string
	}{
		{"tmpfs,data,out", "out", "", reads(false, "data"), "{0 } []"},
		{"tmpfs,data,out", "out", "", reads(false, "tmpfs"), "{0 } []"},
		{"tmpfs,data,out", "out", "", reads(true, "out"), "{0 } []"},
		{"tmpfs,data,out", "out", "", reads(true, "data"), "{2 the need for writable volume data} []"},
		{"tmpfs", "", "", reads(false, "data"), "{2 the need for volume data} []"},
		{"tmpfs", "", "", reads(true, "data"), "{2 the need for writable volume data} []"},
		{"", "", "", reads(false, "data"), "{0 } [volumes]"},
		{"", "", "", reads(true, "data"), "{0 } [volumes.writable]"},
		{"tmpfs,data", "", "none", reads(false, "data"), "{2 the need for volume data} []"},
	} {
		p := *pool
		p.Volumes, p.VolumesWritable, p.Runtime = tc.volumes, tc.writable, tc.runtime
		o, unsure := fit.OfferingFits(&fit.Shape{Constraints: []muster.Constraint{tc.needs}}, &p, &offering)
		if got := fmt.Sprintf("%v %v", o, unsure); got != tc.want {
			t.Errorf("%+v: got %s, want %s", tc, got, tc.want)
		}
	}
	other := offering
	other.Name = "small"
	if o, _ := fit.OfferingFits(shape(t), pool, &other); o.Kind != fit.Filtered {
		t.Errorf("an offering that the pool does not use: %+v", o)
	}
}

// An offering that fits makes a node that fits, once its agent says what is asked.
func TestOfferingAndNodeAgree(t *testing.T) {
	c := fittest.Read(t, "node n1 cpu=4 memory=8GiB pool=gpu offering=big zone=z1 market=spot provider=aws arch=amd64")
	n := c.Snapshot().Node("n1")
	pool := &state.Pool{Name: "gpu", Provider: "aws"}
	for _, job := range []string{"", "cpu=5", "cpu=4 memory=8GiB", "pool=gpu", "pool=x", "needs zone = z1", "needs zone = z2", "needs market in spot", "needs provider = aws; offering = big", "needs arch = amd64"} {
		c.Do("replace a " + job)
		s := fit.ShapeOf(c.Snapshot().JobByUID("a").Run)
		onOffering, _ := fit.OfferingFits(s, pool, &n.Offering)
		if onNode := fit.Check(s, n, fit.Room(n), nil); onNode != onOffering {
			t.Errorf("%q: node says %+v, offering %+v", job, onNode, onOffering)
		}
	}
}

func TestGrew(t *testing.T) {
	for _, tc := range []struct {
		before, line string
		want         bool
	}{
		{"", "end a 0 succeeded", true},
		{"", "place a 1 n1", false},
		{"", "health n1 lost", false},
		{"health n1 lost", "health n1 good", true},
		{"intent n1 hold", "intent n1 run", true},
		{"intent n1 hold", "end a 0 succeeded", false},
		{"", "rejoin n1 cpu=4 memory=4GiB", false},
		{"", "rejoin n1 cpu=5 memory=2GiB", true},
		{"", "rejoin n1 cpu=3 memory=4GiB", false},
		{"", "rejoin n1 cpu=4 memory=4GiB os=linux", true},
		{"", "drain n1", false},
		{"", "gone n1", false},
	} {
		c := fittest.Read(t, "node n1 cpu=4 memory=4GiB\njob a count=2\nplace a 0 n1\n"+tc.before)
		before := c.Snapshot().Node("n1")
		c.Do(tc.line)
		if got := fit.Grew(before, c.Snapshot().Node("n1")); got != tc.want {
			t.Errorf("%s, %s: grew %v", tc.before, tc.line, got)
		}
	}
	n := fittest.Read(t, "node n1 cpu=4 memory=4GiB").Snapshot().Node("n1")
	if !fit.Grew(nil, n) || fit.Grew(n, nil) || fit.Grew(nil, nil) {
		t.Error("a node that comes grows, one that goes does not")
	}
}

// The score of a full node is the best, of an empty one the worst, and it
// rises with each step between.
func TestScore(t *testing.T) {
	capacity := muster.Resources{CPU: 2048, Memory: 4096}
	at := func(cpu, memory int64) float64 {
		return fit.Score(capacity, capacity.Sub(muster.Resources{CPU: muster.MilliCPU(cpu), Memory: muster.Bytes(memory)}))
	}
	if at(2048, 4096) != 1 || at(0, 0) != 0 || at(1024, 2048) != 0.5 {
		t.Errorf("full %v, empty %v, half %v", at(2048, 4096), at(0, 0), at(1024, 2048))
	}
	last := -1.0
	for cpu := int64(0); cpu <= 2048; cpu++ {
		s := at(cpu, 2*cpu)
		if s <= last || s-last > 0.01 && last >= 0 {
			t.Fatalf("score of %d is %v, before it %v", cpu, s, last)
		}
		last = s
	}
	if fit.Score(muster.Resources{}, muster.Resources{}) != 0 {
		t.Error("a node with nothing has a score")
	}
}
