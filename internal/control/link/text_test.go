package link

import (
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// What a node says is fit for the log.
func TestWordsOfANodeAreFitForTheLog(t *testing.T) {
	f := failureOf(&muster.Failure{Class: "mine", Reason: muster.Reason(strings.Repeat("ä", 99)), Message: "a\xff"})
	if f.Class != muster.FailureNode || len(f.Reason) > maxWord+3 || f.Message != "a?" || failureOf(nil) != nil {
		t.Errorf("failure %+v", f)
	}
	h := cleanHello(wire.Hello{Attributes: map[string]string{"a\xff": "b\xff"}, Problems: []string{"c\xff"}, Run: "d\xff"})
	if h.Attributes["a?"] != "b?" || h.Problems[0] != "c?" || h.Run != "d?" {
		t.Errorf("hello %+v", h)
	}
}

// A failure's words are cut where a letter of two bytes stands: the end is told all the same.
func TestLongWordsAreCutBetweenLetters(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.boot("n1", 8)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		r.submit("a", spec("xx"+strings.Repeat("ä", 1100)))
		r.submit("b", spec("x"+strings.Repeat("ä", 1100)))
		r.place("a", "n1")
		r.place("b", "n1")
		for _, name := range []string{"a", "b"} {
			r.until("the end of "+name, 10*time.Second, jobEnded(name))
			f := r.log.Latest().Alloc(muster.AllocID("u" + name + "-0-1")).Failure
			if f.Reason != muster.ReasonCommandNotFound || len(f.Message) < maxMessage-2 || !strings.HasSuffix(f.Message, "ä…") {
				t.Errorf("failure %+v", f)
			}
		}
	})
}

// What the log refuses for good is not told again and again, and holds up nothing else.
func TestRefusedReport(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.boot("n1", 8)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		told := 0
		r.log.Fail(func(f state.Fact) error {
			reported, ok := f.(*state.AllocsReported)
			if !ok {
				return nil
			}
			for _, u := range reported.Allocs {
				if u.Failure != nil && u.Failure.Reason == muster.ReasonExit {
					told++
					return muster.Faultf(muster.FaultInvalid, "text is not UTF-8")
				}
			}
			return nil
		})
		r.submit("bad", spec("sleep 1s ; exit 3"))
		r.submit("good", spec("sleep 1s ; true", count(3)))
		r.place("bad", "n1")
		r.place("good", "n1")
		r.until("the others end", 5*time.Second, jobEnded("good"))
		r.until("and it does", 5*time.Second, jobEnded("bad"))
		if a := r.log.Latest().Alloc("ubad-0-1"); a.ExitCode != 3 || a.Failure.Class != muster.FailureUser || !strings.Contains(a.Failure.Message, "cannot be kept") {
			t.Errorf("%+v, failure %v", a, a.Failure)
		}
		time.Sleep(10 * time.Minute)
		r.log.Fail(nil)
		if told > 3 {
			t.Errorf("told %d times", told)
		}
	})
}

// An internal fault of the proposer is final too; one that passes is waited for.
func TestWhatIsProposedAgain(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.boot("n1", 8)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		left := map[muster.FaultKind]int{muster.FaultUnavailable: 2, muster.FaultAmbiguous: 2, muster.FaultDiskLow: 2}
		r.log.Fail(func(f state.Fact) error {
			if _, ok := f.(*state.AllocsReported); !ok {
				return nil
			}
			for kind, k := range left {
				if k > 0 {
					left[kind]--
					return muster.Faultf(kind, "not now")
				}
			}
			return nil
		})
		r.submit("a", spec("true"))
		r.place("a", "n1")
		r.until("the end", 10*time.Second, jobEnded("a"))
		for kind, k := range left {
			if k > 0 {
				t.Errorf("%s was not met", kind)
			}
		}
		n := 0
		r.log.Fail(func(f state.Fact) error {
			n++
			return muster.Faultf(muster.FaultInternal, "a defect")
		})
		if err := r.link.node("n1").propose(t.Context(), &state.NodesPurged{}); !muster.IsKind(err, muster.FaultInternal) || n != 1 {
			t.Errorf("proposed %d times: %v", n, err)
		}
		r.log.Fail(nil)
	})
}
