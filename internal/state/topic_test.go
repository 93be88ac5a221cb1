package state

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/growthtest"
)

// aChange is one of a few jobs, nodes and members.
func aChange(job, node, kind int) Change {
	key := muster.JobKey{Namespace: "n", Name: fmt.Sprint("j", job)}
	id := muster.NodeID(fmt.Sprint("node", node))
	switch kind {
	case 0:
		return Change{Job: &Job{Key: key}}
	case 1:
		return Change{JobBefore: &Job{Key: key}}
	case 2:
		return Change{Node: &Node{ID: id}}
	case 3:
		return Change{Claim: &Claim{Env: key}}
	case 4:
		return Change{Limits: &NamespaceLimits{Name: "n"}}
	case 5:
		return Change{Config: true}
	}
	return Change{Alloc: &Alloc{ID: muster.AllocID(fmt.Sprint("a", job)), Node: id, Run: &Run{Key: key}}}
}

// A reader of a topic gets each of its changes once and in order, those that a look through the whole feed finds, wherever it
// begins and however far it is behind; it is woken if there is one, and falls behind only with a change of its own.
func TestTopicsHaveWhatTheFeedHas(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := newFeed(rapid.SampledFrom([]int{16, 64, 4 * topicKept}).Draw(t, "ring"))
		topics := []Topic{{}, {Namespace: "n"}, {Job: muster.JobKey{Namespace: "n", Name: "j0"}}, {Node: "node1"}, {Alloc: "a1"}, {Config: true}}
		type reader struct {
			s    *Subscription
			from Position
			got  []Position
		}
		var readers []*reader
		var all []Change
		index := uint64(0)
		entry := func(n int) {
			index++
			changes := make([]Change, n)
			for i := range changes {
				changes[i] = aChange(rapid.IntRange(0, 2).Draw(t, "job"), rapid.IntRange(0, 2).Draw(t, "node"), rapid.IntRange(0, 8).Draw(t, "kind"))
				changes[i].Index, changes[i].Part = index, i
			}
			all = append(all, changes...)
			f.add(index, changes)
		}
		wanted := func(r *reader) (out []Position) {
			for i := range all {
				if all[i].Position().Compare(r.from) > 0 && all[i].In(r.s.topic) {
					out = append(out, all[i].Position())
				}
			}
			return out
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0:
				entry(rapid.IntRange(0, 5).Draw(t, "changes"))
			case 1:
				for range rapid.IntRange(1, 40).Draw(t, "entries") {
					entry(1)
				}
			case 2:
				from := AfterIndex(f.Last())
				if rapid.Bool().Draw(t, "oldest") {
					from = f.Oldest()
				}
				readers = append(readers, &reader{s: f.Subscribe(rapid.SampledFrom(topics).Draw(t, "topic")), from: from})
			case 3:
				if len(readers) == 0 {
					continue
				}
				i := rapid.IntRange(0, len(readers)-1).Draw(t, "reader")
				r := readers[i]
				pos := r.from
				if len(r.got) > 0 {
					pos = r.got[len(r.got)-1]
				}
				want := wanted(r)[len(r.got):]
				gone, cancel := context.WithCancel(context.Background())
				cancel()
				if woken := r.s.Wait(gone, pos) == nil; len(want) > 0 && !woken {
					t.Fatalf("%+v: %d changes after %v, and nobody is woken", r.s.topic, len(want), pos)
				}
				for done := false; !done; {
					changes, next, all, err := r.s.Next(pos, rapid.IntRange(1, 5).Draw(t, "limit"))
					if err != nil {
						if len(want) == 0 && r.s.log != nil && pos.Compare(r.s.log.from) >= 0 {
							t.Fatalf("%+v fell behind with nothing to read: %v", r.s.topic, err)
						}
						r.s.Close()
						readers = slices.Delete(readers, i, i+1)
						break
					}
					for j := range changes {
						r.got = append(r.got, changes[j].Position())
					}
					pos, done = next, all
				}
				if i < len(readers) && readers[i] == r {
					if w := wanted(r); !slices.Equal(w, r.got) {
						t.Fatalf("%+v from %v: %v, want %v", r.s.topic, r.from, r.got, w)
					}
					r.from, r.got = pos, nil
				}
			}
		}
		for _, r := range readers {
			r.s.Close()
		}
		if len(f.topics) > 0 {
			t.Fatalf("%d topics are left", len(f.topics))
		}
	})
}

// Who waits for a topic sleeps through everything else, and wakes by its own change and by a new state.
func TestTopicsSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFeed(16)
		s := f.Subscribe(Topic{Job: muster.JobKey{Namespace: "n", Name: "j1"}})
		defer s.Close()
		woken := 0
		pos := AfterIndex(0)
		go func() {
			for s.Wait(t.Context(), pos) == nil {
				woken++
				var err error
				if _, pos, _, err = s.Next(pos, 10); err != nil {
					pos = AfterIndex(f.Last())
				}
			}
		}()
		at := func(index uint64, c Change) {
			c.Index = index
			f.add(index, []Change{c})
			synctest.Wait()
		}
		for index := range uint64(100) {
			at(index+1, aChange(0, 0, 0))
		}
		if woken != 0 {
			t.Errorf("woken %d times by another job", woken)
		}
		at(101, aChange(1, 0, 0))
		if woken != 1 {
			t.Errorf("woken %d times by its own change", woken)
		}
		f.reset(200)
		synctest.Wait()
		if woken != 2 || pos != AfterIndex(200) {
			t.Errorf("woken %d times, now at %v", woken, pos)
		}
	})
}

// A pass is a thousand entries, each about one of ten jobs, while each watcher waits for a job of its own.
func BenchmarkGrowthWatchers(b *testing.B) {
	growthtest.Run(b, "watchers", 250, func(b *testing.B, watchers int) (before, pass func()) {
		f := newFeed(1 << 16)
		for i := range watchers {
			s := f.Subscribe(Topic{Job: muster.JobKey{Namespace: "n", Name: fmt.Sprint("j", 1000+i)}})
			b.Cleanup(s.Close)
			go func() {
				for pos := (Position{}); s.Wait(b.Context(), pos) == nil; {
					_, pos, _, _ = s.Next(pos, 256)
				}
			}()
		}
		index := uint64(0)
		return nil, func() {
			for range 1000 {
				index++
				c := aChange(int(index%10), 0, 0)
				c.Index = index
				f.add(index, []Change{c})
			}
		}
	})
}
