package schedule

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster/internal/state"
)

// Small work that comes and goes must not keep large work out for ever: after five minutes the room
// that comes free is kept for it, and what comes later waits.
func TestReservedForWhoWasPassedTooLong(t *testing.T) {
	inBubble(t, Config{}, func(r *rig) {
		r.do("node n1 cpu=4 memory=16GiB\nnode n2 cpu=2 memory=16GiB")
		next := 0
		small := func() { r.do(fmt.Sprintf("job s%03d cpu=1 memory=1MiB", next)); next++ }
		for range 6 {
			small()
		}
		r.do("job big cpu=4 memory=1MiB")
		// Every half a minute one ends, the longest placed first, and another one comes.
		turn := func() {
			var oldest *state.Alloc
			r.log.Latest().LiveAllocs(func(a *state.Alloc) bool {
				if oldest == nil || a.Placed < oldest.Placed || a.Placed == oldest.Placed && a.UID < oldest.UID {
					oldest = a
				}
				return true
			})
			if oldest != nil {
				r.do(fmt.Sprintf("end %s 0 succeeded", oldest.UID))
			}
			small()
			time.Sleep(30 * time.Second)
			synctest.Wait()
		}
		big := func() *state.Job { return r.log.Latest().JobByUID("big") }
		for range 8 {
			turn()
			if big().Placed != 0 || big().Reserved != "" {
				t.Fatalf("too early: %+v", big())
			}
		}
		reserved := 0
		for n := 0; big().Placed == 0; n++ {
			if n > 20 {
				t.Fatalf("big never came: %+v; %s", r.broker.Stats(), r.placed())
			}
			if big().Reserved == "n1" {
				reserved++
			}
			turn()
		}
		if reserved == 0 {
			t.Error("it came without a reservation: the case is not what it says")
		}
		if err := r.log.Latest().Check(); err != nil {
			t.Error(err)
		}
		if n := r.log.Latest().Node("n1"); n.Reserved != nil || big().Reserved != "" {
			t.Errorf("room is kept on although it has it: %+v", n.Reserved)
		}
		r.do("end big 0 succeeded")
		if r.log.Latest().LiveAllocCount() != 6 {
			t.Errorf("then the others go on: %s", r.placed())
		}
	})
}

// Who holds room and is stopped, or whose node leaves, holds none; work of higher priority takes it.
func TestReservationsAreGivenUp(t *testing.T) {
	for _, tc := range []struct {
		then     string
		reserved bool
	}{
		{"", true}, {"stop big", false}, {"replace big cpu=1 memory=1MiB", false}, {"intent n1 hold", false}, {"gone n1", false},
		{"job above priority=90 cpu=2 memory=1MiB", false}, {"job below priority=10 cpu=3 memory=1MiB", true},
	} {
		t.Run(tc.then, func(t *testing.T) {
			inBubble(t, Config{}, func(r *rig) {
				r.do("node n1 cpu=4 memory=16GiB\njob a cpu=1 memory=1MiB\njob b cpu=1 memory=1MiB\njob big cpu=4 memory=1MiB")
				time.Sleep(6 * time.Minute)
				synctest.Wait()
				if j := r.log.Latest().JobByUID("big"); j.Reserved != "n1" {
					t.Fatalf("%+v", j)
				}
				r.do("job later cpu=1 memory=1MiB")
				if j := r.log.Latest().JobByUID("later"); j.Placed != 0 {
					t.Error("placed on reserved room")
				}
				r.do(tc.then)
				time.Sleep(30 * time.Second)
				synctest.Wait()
				n, j := r.log.Latest().Node("n1"), r.log.Latest().JobByUID("big")
				if (n.Reserved != nil) != tc.reserved || (j.Reserved != "") != tc.reserved {
					t.Errorf("reserved: node %+v, job %q", n.Reserved, j.Reserved)
				}
				if err := r.log.Latest().Check(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
