package state

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

// keyed submits a job of one member with a key and places it.
func (l *log) keyed(name, key, node string) {
	l.t.Helper()
	l.submit(name, spec(1, func(s *api.JobSpec) { s.Affinity = key }))
	if r := l.place(muster.JobUID("u"+name), 1, 0, 1, node); r.Placed != 1 {
		l.t.Fatalf("%+v", r)
	}
	check(l.t, l.s.Latest())
}

func (l *log) warm(key muster.AffinityKey) (nodes []muster.NodeID) {
	l.s.Latest().WarmNodes(key, func(id muster.NodeID) bool {
		nodes = append(nodes, id)
		return true
	})
	return nodes
}

// What a node served last comes first, a bounded number, and is worth what it was last used for.
func TestWarmthIsTheNewestKeys(t *testing.T) {
	l := newLog(t)
	l.serve("n1", 100)
	if w := l.s.Latest().Node("n1").Worth(); w != 0 {
		t.Fatalf("a fresh node is worth %d", w)
	}
	for i := range maxWarm + 4 {
		l.keyed(fmt.Sprintf("j%d", i), fmt.Sprintf("k%d", i), "n1")
	}
	l.keyed("again", "k10", "n1")
	n := l.s.Latest().Node("n1")
	if len(n.Warm) != maxWarm || n.Warm[0] != "k10" || n.Warm[1] != "k19" || n.Warm[maxWarm-1] != "k4" {
		t.Fatalf("%q", n.Warm)
	}
	if n.Worth() != l.s.Latest().Meta().Time {
		t.Fatalf("worth %d", n.Worth())
	}
	if got := l.warm("k3"); got != nil {
		t.Fatalf("k3 has fallen out and is on %v", got)
	}
	if got := n.WarmFor([]muster.AffinityKey{"k4", "k3", "k10"}); got != 2 {
		t.Fatalf("warm for %d", got)
	}
}

// Contact that comes back within the grace finds what it left.
func TestWarmthSurvivesLostContact(t *testing.T) {
	l := newLog(t)
	l.serve("n1", 2)
	l.keyed("a", "A", "n1")
	l.report("n1", succeeded("ua-0-1"))
	for _, h := range []muster.NodeHealth{muster.NodeLost, muster.NodeGood} {
		l.must(&NodeHealthChanged{ID: "n1", Health: h})
		check(t, l.s.Latest())
		if got := l.warm("A"); len(got) != 1 || l.s.Latest().Node("n1").WarmFor([]muster.AffinityKey{"A"}) != 1 {
			t.Fatalf("%s: %v", h, got)
		}
	}
	if !l.s.Latest().Node("n1").Schedulable() {
		t.Fatal("not good at once")
	}
}

// Whatever goes through nodes, nothing of it is left when they are gone.
func TestWarmthEndsWithItsNodes(t *testing.T) {
	l := newLog(t)
	base := l.s.Latest().WarmCount()
	for i := range 10 {
		l.serve(fmt.Sprintf("n%d", i), 200)
	}
	for i := range 1000 {
		l.submit(fmt.Sprintf("j%d", i), spec(1, func(s *api.JobSpec) {
			s.Affinity, s.Image = fmt.Sprintf("k%d", i), fmt.Sprintf("image%d", i%70)
		}))
		l.place(muster.JobUID(fmt.Sprintf("uj%d", i)), 1, 0, 1, fmt.Sprintf("n%d", i%10))
	}
	check(t, l.s.Latest())
	if got := l.s.Latest().WarmCount(); got != 10*maxWarm {
		t.Fatalf("the index has %d entries, want %d", got, 10*maxWarm)
	}
	for i := range 10 {
		id := muster.NodeID(fmt.Sprintf("n%d", i))
		switch i % 3 {
		case 0: // an operator destroys it
			l.must(&NodeTerminating{ID: id})
		case 1: // it is drained
			l.must(&NodeDraining{ID: id})
		}
		l.must(&NodeGone{ID: id})
		check(t, l.s.Latest())
	}
	if got := l.s.Latest().WarmCount(); got != base {
		t.Fatalf("the index has %d entries, %d before", got, base)
	}
}

// The agent's word on its images: what was deleted is forgotten, but not what is about to be pulled.
func TestImagesSeenSetWarmthRight(t *testing.T) {
	l := newLog(t)
	l.serve("n1", 4)
	for i, image := range []string{"busybox", "python:3.13", "ghcr.io/a/b@sha256:12"} {
		name := fmt.Sprintf("j%d", i)
		l.submit(name, spec(1, func(s *api.JobSpec) { s.Image, s.Affinity = image, "data" }))
		l.place(muster.JobUID("u"+name), 1, 0, 1, "n1")
	}
	l.report("n1", succeeded("uj0-0-1"), succeeded("uj2-0-1"))
	seen := func(images ...string) []muster.AffinityKey {
		t.Helper()
		f := &NodeImagesSeen{ID: "n1"}
		for _, i := range images {
			f.Images = append(f.Images, muster.ImageKey(i))
		}
		l.must(f)
		check(t, l.s.Latest())
		return l.s.Latest().Node("n1").Warm
	}
	const digest, python = "image:sha256:12", "image:docker.io/library/python:3.13"
	if got := seen("docker.io/library/alpine:3", "sha256:12"); !slices.Equal(got, []muster.AffinityKey{"data", digest, python, "image:docker.io/library/alpine:3"}) {
		t.Fatalf("%q", got)
	}
	l.report("n1", succeeded("uj1-0-1"))
	if got := seen(); !slices.Equal(got, []muster.AffinityKey{"data"}) {
		t.Fatalf("%q", got)
	}
	before := l.s.Latest().Node("n1")
	if seen(); l.s.Latest().Node("n1") != before {
		t.Fatal("the row was written although nothing changed")
	}
	if _, err := l.do(&NodeImagesSeen{ID: "nope"}); !muster.IsKind(err, muster.FaultNotFound) {
		t.Fatal(err)
	}
}

// One key again and again costs no slice for each placement.
func BenchmarkServe(b *testing.B) {
	keys := []muster.AffinityKey{"data", "image:x"}
	n := &Node{}
	n.serve(keys, muster.At(time.Unix(1, 0)))
	b.ReportAllocs()
	for b.Loop() {
		n.serve(keys, 5)
	}
}
