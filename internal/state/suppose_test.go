package state

import (
	"fmt"
	"sync"
	"testing"

	"github.com/musterhq/muster"
)

// Many suppose at once while facts are applied: each sees its own, and the race detector nothing.
func TestSupposeAtOnce(t *testing.T) {
	l := newLog(t)
	l.submit("a", spec(1))
	snap := l.s.Latest()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			name := fmt.Sprint("s", i)
			after, _, err := snap.Suppose(&JobSubmitted{Key: key(name), UID: muster.JobUID("u" + name), Spec: spec(1)}, 0)
			if err != nil || after.Job(key(name)) == nil || after.Job(key("a")) == nil || after.Index() != snap.Index()+1 {
				t.Errorf("%v", err)
			}
		})
	}
	for i := range 8 {
		l.submit(fmt.Sprint("b", i), spec(1))
	}
	wg.Wait()
	if snap.Job(key("s0")) != nil || l.s.Latest().Job(key("s0")) != nil || l.s.Latest().Job(key("b7")) == nil {
		t.Error("what was supposed is there")
	}
}
