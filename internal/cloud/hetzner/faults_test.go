package hetzner

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/hetzner/hetznertest"
)

// Whatever goes wrong on the way, no token has two servers, and nothing is left in the end.
func TestNothingIsLeftAfterFaults(t *testing.T) {
	for name, text := range map[string]string{
		"answers are lost":     "call: lost after 40% call=create",
		"calls are lost":       "call: lost before 20%",
		"answers are cut":      "call: truncated 20%",
		"a proxy":              "call: proxy 20%",
		"errors of the server": "call: refuse 500 server_error 20%",
		"too many calls":       "call: refuse 429 rate_limit_exceeded 20%",
		"conflicts":            "call: refuse 409 conflict 30% call=create\ncall: refuse 423 locked 30% call=delete",
		"no capacity":          "create: capacity 40% location=fsn1",
		"lists lag":            "list: late 0s..30ms\ncall: lost after 30% call=create",
		"actions take long":    "action: takes 1ms..20ms",
		"starts fail":          "server: fails resource_unavailable n%5=1\naction: takes 0s..5ms",
		"actions are not seen": "call: proxy 2x call=actions\naction: takes 0s..5ms\nserver: fails unknown n%7=1",
		"addresses stay":       "server: leaves 30%\ncall: lost after 20% call=delete\ncall: proxy 20% call=ips",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := hetznertest.New(t, hetznertest.Options{Seed: 11})
			p := open(t, c, "o", nil)
			// The catalog is read once, and not again at each fault.
			if _, err := p.Offers(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := c.Play(text); err != nil {
				t.Fatal(err)
			}
			buyForty(t, c, p)
			leaveNothing(t, c, p)
			if idle := c.Idle(); len(idle) > 0 {
				t.Errorf("never struck: %v", idle)
			}
		})
	}
}

// rounds bounds how often a test does again what a fault has kept from succeeding.
const rounds = 100

// buyForty makes 40 servers as the fleet would: it repeats what failed, until each token has a server.
func buyForty(t *testing.T, c *hetznertest.Cloud, p *Provider) {
	t.Helper()
	var intents []cloud.Intent
	for i := range 40 {
		intents = append(intents, intent(fmt.Sprint("t", i)))
	}
	for n := 0; len(intents) > 0; n++ {
		if n == rounds {
			t.Fatalf("%d servers were never made", len(intents))
		}
		var again []cloud.Intent
		for i, made := range p.Create(t.Context(), intents) {
			if made.Err != nil {
				again = append(again, intents[i])
			}
		}
		intents = again
	}
	seen := map[string]bool{}
	for _, s := range c.Ever() {
		token := s.Labels["muster-token"]
		if seen[token] {
			t.Errorf("token %q has two servers", token)
		}
		seen[token] = true
	}
	if len(seen) != 40 {
		t.Errorf("%d tokens have servers", len(seen))
	}
}

// leaveNothing destroys what lists show, and removes what is left then, until the books are empty.
func leaveNothing(t *testing.T, c *hetznertest.Cloud, p *Provider) {
	t.Helper()
	for range rounds {
		servers, ips, _ := c.Books()
		if len(servers)+len(ips) == 0 {
			return
		}
		var ids []muster.InstanceID
		for cursor := ""; ; {
			l, err := p.List(t.Context(), cursor)
			if err != nil {
				break
			}
			for i := range l.Instances {
				ids = append(ids, l.Instances[i].ID)
			}
			if cursor = l.Next; cursor == "" {
				break
			}
		}
		p.Destroy(t.Context(), ids)
		if left, err := p.Leftovers(t.Context()); err == nil {
			p.Remove(t.Context(), left)
		}
	}
	servers, ips, _ := c.Books()
	t.Errorf("left: %v, %v", servers, ips)
}

func TestScriptsAreChecked(t *testing.T) {
	c := hetznertest.New(t, hetznertest.Options{})
	for text, want := range map[string]string{
		"x":                         "a line is where",
		"call: explode":             "call: explode is not known",
		"call: refuse 500":          "lacks a word",
		"call: refuse many code":    "many",
		"call: lost middle":         "before or after",
		"call: proxy call=teapot":   "is no call",
		"create: capacity call=get": "is no call",
		"list: late soon":           "soon",
		"server: leaves sometimes":  "is not understood",
	} {
		if err := c.Play(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if err := c.Play("# nothing\ncall: proxy 10% for=1m from=2s call=list\nserver: fails x once n%2=1 type=cpx11 location=fsn1"); err != nil {
		t.Error(err)
	}
}

// A list that lags shows a server as soon as its time is over.
func TestListsLag(t *testing.T) {
	now := time.Now()
	c := hetznertest.New(t, hetznertest.Options{Script: "list: late 10s", Now: func() time.Time { return now }})
	p := open(t, c, "o", func(c *Config) { c.Now = func() time.Time { return now } })
	if got := make1(t, p, "t"); got.Err != nil {
		t.Fatal(got.Err)
	}
	if l := list(t, p); len(l) != 0 {
		t.Errorf("%v", l)
	}
	now = now.Add(10 * time.Second)
	if l := list(t, p); len(l) != 1 {
		t.Errorf("%v", l)
	}
}
