package ec2test_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
)

// Whatever goes wrong with launches of several, no token gets a second instance, and nothing is left.
func TestBatchesMakeNothingTwice(t *testing.T) {
	for name, script := range map[string]string{
		"quiet":      "",
		"lost":       "create: lost before 20%\ncreate: lost middle 20%\ncreate: lost after 20%\ncreate: truncated 10%",
		"lag":        "list: late 0s..60s\nlist: tagless 0s..30s\ncreate: lost before 30%",
		"partial":    "create: partial max=3 50%\ncreate: lost after 30%",
		"proxy":      "call: proxy made 15%\ncall: internal made 10%\ncall: internal 10%",
		"throttled":  "account: rates 0.5\ncall: throttle 20%",
		"untagged":   "token: untagged\ncreate: lost after 50%",
		"corpse":     "token: corpse\ncreate: lost after 50%\ninstance: dies after=3s..20s n%5=0",
		"terminated": "create: lost after 50%\ninstance: dies after=3s..20s n%5=0",
		"fails":      "instance: fails Server.InsufficientInstanceCapacity after=4s n%4=1\nlist: late 0s..10s",
		"full":       "subnet: free 20 id=subnet-0a\ncreate: lost after 20%",
		"pages":      "list: page max=5\nlist: move 30%\nlist: expire 30s",
		"lagpartial": "list: late 0s..90s\nlist: tagless 0s..90s\ncreate: partial max=5 30%\ncreate: lost middle 30%\ncreate: capacity 20%",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { batches(t, newStand(t, script), script) })
		})
	}
}

func batches(t *testing.T, s stand, script string) {
	p := s.Open(t, "c1")
	var want []cloud.Intent
	for k := range 40 {
		in := cloud.Intent{Token: muster.Token(fmt.Sprintf("tok-%02d", k)), Node: muster.NodeID(fmt.Sprintf("n-%02d", k)), Pool: "main", Offering: "m7i.large",
			Zone: "eu-central-1a", Market: muster.OnDemand}
		want = append(want, in)
	}
	made := map[muster.Token]muster.InstanceID{}
	began := time.Now()
	for range 60 {
		if len(want) == 0 {
			break
		}
		var rest []cloud.Intent
		for i, c := range p.Create(t.Context(), want) {
			if c.Err != nil {
				rest = append(rest, want[i])
				continue
			}
			if c.Instance.Tags.Token != want[i].Token || c.Instance.Tags.Node != want[i].Node {
				t.Errorf("instance %v for %s", c.Instance, want[i].Token)
			}
			made[want[i].Token] = c.Instance.ID
		}
		want = rest
		time.Sleep(5 * time.Second)
	}
	t.Logf("%d made in %s by %d launches", len(made), time.Since(began), s.Calls("RunInstances"))
	if n := s.Calls("RunInstances"); script == "" && (n != 5 || len(made) != 40) {
		t.Errorf("%d made by %d launches", len(made), n)
	}
	all := 0
	for _, m := range s.Made() {
		if m.Tags["muster-owner"] == "c1" {
			all++
		}
	}
	if all > 40 {
		t.Errorf("%d instances for 40 tokens", all)
	}
	ids := map[muster.InstanceID]bool{}
	for tok, id := range made {
		if ids[id] {
			t.Errorf("%s twice (%s)", id, tok)
		}
		ids[id] = true
	}
	for range 200 {
		if len(s.Left("c1")) == 0 {
			return
		}
		sweep(t.Context(), p)
		time.Sleep(10 * time.Second)
	}
	t.Errorf("left: %v", s.Left("c1"))
}
