package health

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

var t0 = muster.At(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))

func at(d time.Duration) muster.Time { return t0.Add(d) }

func TestJudge(t *testing.T) {
	const s = time.Second
	up := Contact{Began: t0, Up: true, Heard: at(10 * s)}
	down := Contact{Began: t0, Heard: at(10 * s)}
	with := func(c Contact, fn func(*Contact)) Contact { fn(&c); return c }
	for _, c := range []struct {
		name    string
		stage   muster.NodeStage
		health  muster.NodeHealth
		contact Contact
		grace   time.Duration
		now     time.Duration
		want    string // health, reason, wake
	}{
		{"in touch", muster.NodeServing, muster.NodeGood, up, time.Minute, 20 * s, "good"},
		{"in touch, however long ago it was heard: the stream itself ends by silence", muster.NodeServing, muster.NodeGood, up, time.Minute, time.Hour, "good"},
		{"just out of touch", muster.NodeServing, muster.NodeGood, down, time.Minute, 10*s + 200*time.Millisecond, "good; again in 800ms"},
		{"out of touch", muster.NodeServing, muster.NodeGood, down, time.Minute, 11 * s, "lost: its agent cannot be reached"},
		{"still out of touch: since when and why stay", muster.NodeServing, muster.NodeLost, down, time.Minute, time.Hour, "lost: was"},
		{"back (N4)", muster.NodeServing, muster.NodeLost, up, time.Minute, 20 * s, "good"},
		{"drains and is out of touch", muster.NodeDraining, muster.NodeGood, down, time.Minute, 11 * s, "lost: its agent cannot be reached"},
		{"a new leader has not reached it yet", muster.NodeServing, muster.NodeGood, Contact{Began: at(3600 * s)}, time.Minute, 3614 * s, "good; again in 1s"},
		{"and does not", muster.NodeServing, muster.NodeGood, Contact{Began: at(3600 * s)}, time.Minute, 3615 * s, "lost: its agent cannot be reached"},
		{"a short grace is shorter than that", muster.NodeServing, muster.NodeGood, Contact{Began: t0}, 2 * s, 2 * s, "lost: its agent cannot be reached"},
		{"what was heard by the leader before does not count against it", muster.NodeServing, muster.NodeGood, Contact{Began: at(3600 * s), Heard: at(10 * s)}, time.Minute, 3602 * s, "good; again in 13s"},
		{"nothing to start an agent on", muster.NodeServing, muster.NodeGood, with(down, func(c *Contact) { c.Denied = true }), time.Minute, 10 * s, "lost: no contact, and the provider says that the instance is not there"},
		{"refuses", muster.NodeServing, muster.NodeGood, with(down, func(c *Contact) { c.Refused = "obeys c9" }), time.Minute, 60 * s, "unready: obeys c9"},
		{"no runtime", muster.NodeServing, muster.NodeGood, with(down, func(c *Contact) { c.Unready = "no runtime" }), time.Minute, 60 * s, "unready: no runtime"},
		{"well again (N13)", muster.NodeServing, muster.NodeUnready, up, time.Minute, 60 * s, "good"},
		{"runs what a restored state does not know", muster.NodeServing, muster.NodeGood, with(up, func(c *Contact) { c.Strays = 2 }), time.Minute, 60 * s, "unready: it runs 2 allocations that nothing is known of since a backup was restored"},
		{"runs more that nothing is known of than it stops", muster.NodeServing, muster.NodeGood, with(up, func(c *Contact) { c.Strays, c.Spared = 1, true }), time.Minute, 60 * s, "unready: it runs 1 allocation that nothing is known of, too many to stop without a cause in the log"},
		{"and out of touch", muster.NodeServing, muster.NodeUnready, with(down, func(c *Contact) { c.Strays = 1 }), time.Minute, 60 * s, "lost: its agent cannot be reached"},
		{"sidelined stays sidelined", muster.NodeServing, muster.NodeFlaky, up, time.Minute, 60 * s, "flaky: was"},
		{"sidelined and out of touch", muster.NodeServing, muster.NodeFlaky, down, time.Minute, 60 * s, "lost: its agent cannot be reached"},
		{"sidelined and refuses", muster.NodeServing, muster.NodeFlaky, with(down, func(c *Contact) { c.Refused = "obeys c9" }), time.Minute, 60 * s, "flaky: was"},
		{"broken stays broken", muster.NodeServing, muster.NodeBroken, down, time.Minute, time.Hour, "broken: was"},
		{"boots and is out of touch: its deadline is the boot time-out", muster.NodeBooting, muster.NodeUnready, Contact{Began: t0}, time.Minute, time.Hour, "unready: was"},
		{"boots and has no runtime (N1)", muster.NodeBooting, muster.NodeUnready, Contact{Began: t0, Unready: "no runtime"}, time.Minute, s, "unready: no runtime"},
		{"boots and is in touch: joining makes it good", muster.NodeBooting, muster.NodeUnready, up, time.Minute, 20 * s, "unready: was"},
		{"being destroyed", muster.NodeTerminating, muster.NodeGood, down, time.Minute, time.Hour, "good"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := &state.Node{ID: "n", Stage: c.stage, Health: c.health}
			if c.health != muster.NodeGood {
				n.HealthReason = "was"
			}
			v := Judge(n, c.grace, c.contact, at(c.now))
			var got strings.Builder
			got.WriteString(string(v.Health))
			if v.Reason != "" {
				got.WriteString(": " + v.Reason)
			}
			if v.Wake != 0 {
				fmt.Fprintf(&got, "; again in %s", v.Wake.Sub(at(c.now)))
			}
			if got.String() != c.want {
				t.Errorf("got  %s\nwant %s", got.String(), c.want)
			}
		})
	}
}

// Whatever it is given: the dial may be turned there, a wake lies ahead, and
// what is judged again is the same.
func TestJudgeProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pick := func(label string, max int) muster.Time {
			return at(time.Duration(rapid.IntRange(0, max).Draw(t, label)) * time.Second)
		}
		n := &state.Node{
			Stage:  rapid.SampledFrom([]muster.NodeStage{muster.NodeBooting, muster.NodeAdopted, muster.NodeServing, muster.NodeDraining, muster.NodeTerminating}).Draw(t, "stage"),
			Health: rapid.SampledFrom([]muster.NodeHealth{muster.NodeGood, muster.NodeUnready, muster.NodeLost, muster.NodeFlaky, muster.NodeBroken}).Draw(t, "health"),
		}
		c := Contact{Began: pick("began", 100), Heard: pick("heard", 200), Up: rapid.Bool().Draw(t, "up"), Denied: rapid.Bool().Draw(t, "denied"), Strays: rapid.IntRange(0, 2).Draw(t, "strays")}
		c.Refused = rapid.SampledFrom([]string{"", "", "no"}).Draw(t, "refused")
		c.Unready = rapid.SampledFrom([]string{"", "", "sick"}).Draw(t, "unready")
		now := max(c.Began, c.Heard, pick("now", 300))
		v := Judge(n, time.Minute, c, now)
		if v.Health != n.Health {
			if _, err := n.Health.To("node", v.Health); err != nil {
				t.Fatal(err)
			}
		}
		if v.Wake != 0 && v.Wake <= now {
			t.Fatalf("wake %d is not after now %d", v.Wake, now)
		}
		if v.Health == muster.NodeGood && n.Health != muster.NodeGood && !c.Up {
			t.Fatal("good without contact")
		}
		n.Health, n.HealthReason = v.Health, v.Reason
		if again := Judge(n, time.Minute, c, now); again != v {
			t.Fatalf("judged %+v, then %+v", v, again)
		}
		if v.Wake != 0 {
			if then := Judge(n, time.Minute, c, v.Wake); then.Health != muster.NodeLost {
				t.Fatalf("at its time it is %s", then.Health)
			}
		}
	})
}
