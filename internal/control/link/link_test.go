package link

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

func TestLaunchJoinRunEnd(t *testing.T) {
	inBubble(t, func(r *rig) {
		n := r.boot("n1", 8)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		time.Sleep(time.Millisecond) // what was placed at the very time at which the link began may have been shipped by another
		r.submit("a", spec("print hello ; exit 3", count(3)))
		ids := r.place("a", "n1")
		r.until("ended", time.Second, jobEnded("a"))
		for _, id := range ids {
			a := r.log.Latest().Alloc(id)
			if a.ExitCode != 3 || a.Failure == nil || a.Failure.Class != muster.FailureUser {
				t.Errorf("%s: exit %d, failure %v", id, a.ExitCode, a.Failure)
			}
			if a.Output.Stage != state.OutputComplete || string(a.Output.Stdout.Inline) != "hello\n" || a.Output.BlobBytes != 0 {
				t.Errorf("%s: output %+v", id, a.Output)
			}
		}
		time.Sleep(forgetAfter + time.Second)
		synctest.Wait()
		if held := n.Held(); len(held) > 0 {
			t.Errorf("not forgotten: %v", held)
		}
		if n := len(r.blobs.Whole("jobs/")); n > 0 {
			t.Errorf("%d bytes in the blob store of small streams", n)
		}
		r.check()
	})
}
