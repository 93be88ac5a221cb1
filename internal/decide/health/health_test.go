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
		{"out of touch, and why", muster.NodeServing, muster.NodeGood, with(down, func(c *Contact) { c.Away = "connection refused" }), time.Minute, 11 * s, "lost: its agent cannot be reached: connection refused"},
		{"still out of touch, for another reason", muster.NodeServing, muster.NodeLost, with(down, func(c *Contact) { c.Away = "another host key" }), time.Minute, time.Hour, "lost: its agent cannot be reached: another host key"},
		{"still out of touch, and now the provider denies it", muster.NodeServing, muster.NodeLost, with(down, func(c *Contact) { c.Away, c.Denied = "connection refused", true }), time.Minute, time.Hour, "lost: no contact, and the provider says that the instance is not there"},
		{"back within the grace", muster.NodeServing, muster.NodeLost, up, time.Minute, 20 * s, "good"},
		{"back after it, as one that is held may be", muster.NodeServing, muster.NodeLost, up, time.Minute, 70 * s, "unready: to be probed: contact is back after 1m10s"},
		{"drains and is out of touch", muster.NodeDraining, muster.NodeGood, down, time.Minute, 11 * s, "lost: its agent cannot be reached"},
		{"a new leader has not reached it yet", muster.NodeServing, muster.NodeGood, Contact{Began: at(3600 * s)}, time.Minute, 3614 * s, "good; again in 1s"},
		{"and does not", muster.NodeServing, muster.NodeGood, Contact{Began: at(3600 * s)}, time.Minute, 3615 * s, "lost: its agent cannot be reached"},
		{"a short grace is shorter than that", muster.NodeServing, muster.NodeGood, Contact{Began: t0}, 2 * s, 2 * s, "lost: its agent cannot be reached"},
		{"what was heard by the leader before does not count against it", muster.NodeServing, muster.NodeGood, Contact{Began: at(3600 * s), Heard: at(10 * s)}, time.Minute, 3602 * s, "good; again in 13s"},
		{"nothing to start an agent on", muster.NodeServing, muster.NodeGood, with(down, func(c *Contact) { c.Denied = true }), time.Minute, 10 * s, "lost: no contact, and the provider says that the instance is not there"},
		{"refuses", muster.NodeServing, muster.NodeGood, with(down, func(c *Contact) { c.Refused = "obeys c9" }), time.Minute, 60 * s, "unready: obeys c9"},
		{"no runtime", muster.NodeServing, muster.NodeGood, with(down, func(c *Contact) { c.Unready = "no runtime" }), time.Minute, 60 * s, "unready: no runtime"},
		{"well again, and to prove it", muster.NodeServing, muster.NodeUnready, up, time.Minute, 60 * s, "unready: was; probe"},
		{"proved", muster.NodeServing, muster.NodeUnready, with(up, func(c *Contact) { c.Proved = t0 }), time.Minute, 60 * s, "good"},
		{"proved for an earlier turn of the dial", muster.NodeServing, muster.NodeUnready, with(up, func(c *Contact) { c.Proved = at(-s) }), time.Minute, 60 * s, "unready: was; probe"},
		{"not ready, and to be asked again later", muster.NodeServing, muster.NodeUnready, with(up, func(c *Contact) { c.Asked, c.NotReady, c.Again = t0, "warming up", at(90*s) }), time.Minute, 60 * s, "unready: warming up; again in 30s"},
		{"asked again", muster.NodeServing, muster.NodeUnready, with(up, func(c *Contact) { c.Asked, c.NotReady, c.Again = t0, "warming up", at(90*s) }), time.Minute, 90 * s, "unready: warming up; probe"},
		{"what an earlier probe said does not hold any more", muster.NodeServing, muster.NodeUnready, with(up, func(c *Contact) { c.Asked, c.NotReady, c.Again = at(-s), "warming up", at(90*s) }), time.Minute, 60 * s, "unready: was; probe"},
		{"says that it is broken", muster.NodeServing, muster.NodeGood, with(up, func(c *Contact) { c.Broken = "its disk is read-only" }), time.Minute, 60 * s, "broken: its disk is read-only"},
		{"back, and says so", muster.NodeServing, muster.NodeLost, with(up, func(c *Contact) { c.Broken = "ecc" }), time.Minute, 60 * s, "broken: ecc"},
		{"boots, and says so", muster.NodeBooting, muster.NodeUnready, with(down, func(c *Contact) { c.Broken = "ecc" }), time.Minute, 60 * s, "broken: ecc"},
		{"runs what a restored state does not know", muster.NodeServing, muster.NodeGood, with(up, func(c *Contact) { c.Strays = 2 }), time.Minute, 60 * s, "unready: it runs 2 allocations that nothing is known of since a backup was restored"},
		{"runs more that nothing is known of than it stops", muster.NodeServing, muster.NodeGood, with(up, func(c *Contact) { c.Strays, c.Spared = 1, true }), time.Minute, 60 * s, "unready: it runs 1 allocation that nothing is known of, too many to stop without a cause in the log"},
		{"and out of touch", muster.NodeServing, muster.NodeUnready, with(down, func(c *Contact) { c.Strays = 1 }), time.Minute, 60 * s, "lost: its agent cannot be reached"},
		{"sidelined stays sidelined", muster.NodeServing, muster.NodeFlaky, up, time.Minute, 60 * s, "flaky: was; again in 14m0s"},
		{"until its time is over", muster.NodeServing, muster.NodeFlaky, up, time.Minute, 900 * s, "unready: to be probed after its quarantine"},
		{"its time is over, and it cannot run anything", muster.NodeServing, muster.NodeFlaky, with(up, func(c *Contact) { c.Unready = "no runtime" }), time.Minute, 900 * s, "unready: no runtime"},
		{"its time is over, and it is out of touch", muster.NodeServing, muster.NodeFlaky, down, time.Minute, 900 * s, "lost: its agent cannot be reached"},
		{"sidelined and out of touch", muster.NodeServing, muster.NodeFlaky, down, time.Minute, 60 * s, "lost: its agent cannot be reached"},
		{"sidelined and refuses", muster.NodeServing, muster.NodeFlaky, with(down, func(c *Contact) { c.Refused = "obeys c9" }), time.Minute, 60 * s, "flaky: was"},
		{"broken stays broken", muster.NodeServing, muster.NodeBroken, down, time.Minute, time.Hour, "broken: was"},
		{"boots and is out of touch: its deadline is the boot time-out", muster.NodeBooting, muster.NodeUnready, Contact{Began: t0}, time.Minute, time.Hour, "unready: was"},
		{"boots and has no runtime", muster.NodeBooting, muster.NodeUnready, Contact{Began: t0, Unready: "no runtime"}, time.Minute, s, "unready: no runtime"},
		{"boots and is in touch: joining makes it good", muster.NodeBooting, muster.NodeUnready, up, time.Minute, 20 * s, "unready: was"},
		{"being destroyed", muster.NodeTerminating, muster.NodeGood, down, time.Minute, time.Hour, "good"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := &state.Node{ID: "n", Stage: c.stage, Health: c.health, HealthSince: t0}
			if c.health == muster.NodeFlaky {
				n.SidelinedUntil = at(900 * s)
			}
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
			if v.Probe {
				got.WriteString("; probe")
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
		c.Broken = rapid.SampledFrom([]string{"", "", "", "ecc"}).Draw(t, "broken")
		n.HealthSince, c.Proved, c.Asked, c.Again = pick("since", 3), pick("proved", 3), pick("asked", 3), pick("again", 300)
		c.Away = rapid.SampledFrom([]string{"", "refused", "hangs"}).Draw(t, "away")
		c.NotReady = rapid.SampledFrom([]string{"", "not yet"}).Draw(t, "notready")
		if n.Health == muster.NodeFlaky || n.Health == muster.NodeLost && rapid.Bool().Draw(t, "sidelined") {
			n.SidelinedUntil = pick("until", 300)
		}
		now := max(c.Began, c.Heard, n.HealthSince, pick("now", 300))
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
		if v.Probe && (!c.Up || v.Health != muster.NodeUnready) {
			t.Fatalf("a probe of one that is %+v with %+v", v, c)
		}
		if v.Health != n.Health {
			n.HealthSince, c.Proved, c.Asked = now, -1, -1
			if n.SidelinedUntil != 0 && (v.Health == muster.NodeUnready || v.Health == muster.NodeGood) {
				n.SidelinedUntil = 0
			}
		}
		n.Health, n.HealthReason, n.Denied = v.Health, v.Reason, v.Denied
		again := Judge(n, time.Minute, c, now)
		again.Wake, again.Probe = v.Wake, v.Probe // a turn of the dial may bring them
		if again != v {
			t.Fatalf("judged %+v, then %+v", v, again)
		}
		if v.Wake != 0 {
			if then := Judge(n, time.Minute, c, v.Wake); then.Health == v.Health && then.Health != muster.NodeLost && !then.Probe {
				t.Fatalf("at its time it is %+v", then)
			}
		}
	})
}
