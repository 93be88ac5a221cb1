package state

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
)

// Follow hands on each change once and in order, a large entry whole before it waits, and asks for a new beginning when it fell behind.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFeed(4 * followBatch)
		entry := func(index uint64, n int) {
			changes := make([]Change, n)
			for i := range changes {
				changes[i].Index, changes[i].Part = index, i
			}
			f.add(index, changes)
		}
		var got []Position
		anew := 0
		hold := make(chan struct{})
		close(hold)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		entry(1, 3)
		go func() {
			defer close(done)
			f.Follow(ctx, AfterIndex(1), func(changes []Change) {
				<-hold
				if len(changes) == 0 || len(changes) > followBatch {
					t.Errorf("%d changes at once", len(changes))
				}
				for i := range changes {
					got = append(got, changes[i].Position())
				}
			}, func() Position {
				anew++
				return AfterIndex(f.Last())
			})
		}()
		for index, n := range []int{2: 1, 0, 2*followBatch + 7, followBatch, 5} {
			if index < 2 {
				continue
			}
			got = nil
			entry(uint64(index), n)
			synctest.Wait() // no entry comes after it
			if len(got) != n || !slices.IsSortedFunc(got, Position.Compare) {
				t.Fatalf("of an entry of %d changes %d came", n, len(got))
			}
		}
		// Held up while more comes than is kept.
		hold = make(chan struct{})
		got = nil
		entry(7, 1)
		synctest.Wait()
		for index := range uint64(6) {
			entry(8+index, followBatch)
		}
		close(hold)
		synctest.Wait()
		if anew != 1 || len(got) != 1 {
			t.Errorf("fell behind %d times, %d changes came", anew, len(got))
		}
		entry(20, 2)
		synctest.Wait()
		if len(got) != 3 || got[2] != (Position{20, 1}) {
			t.Errorf("then came %v", got)
		}
		cancel()
		<-done
	})
}
