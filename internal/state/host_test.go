package state

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/musterhq/muster"
)

func hostsOf(s *Snapshot, provider muster.ProviderName) (out string) {
	ProvidersOf(s).Hosts(provider, func(h *Host) bool {
		out += h.Name + ":"
		if h.Use != nil {
			out += fmt.Sprintf(" %s of %s", h.Use.Instance, h.Use.Node)
			if h.Use.Owed {
				out += " owed"
			}
		}
		if h.Found != nil {
			out += " at " + h.Found.Address
		}
		out += "; "
		return true
	})
	return out
}

// A host has one user at a time, and a token one host.
func TestHostHasOneUser(t *testing.T) {
	l := newLog(t)
	l.must(&FormatRaised{Format: FormatNewest})
	take := func(host, token string) error {
		_, err := l.do(&HostTaken{"lab", host, HostUse{Instance: muster.InstanceID(host + "-" + token), Token: muster.Token(token), Node: muster.NodeID("n" + token), Offering: "rack"}})
		check(t, l.s.Latest())
		return err
	}
	want := func(hosts string) {
		t.Helper()
		if got := hostsOf(l.s.Latest(), "lab"); got != hosts {
			t.Errorf("hosts %q, want %q", got, hosts)
		}
		check(t, l.s.Latest())
	}
	if err := take("a", "1"); err != nil {
		t.Fatal(err)
	}
	if err := take("a", "1"); err != nil { // the same again
		t.Error(err)
	}
	for _, c := range [][2]string{{"a", "2"}, {"b", "1"}} {
		if err := take(c[0], c[1]); !muster.IsKind(err, muster.FaultConflict) {
			t.Errorf("host %s for token %s: %v", c[0], c[1], err)
		}
	}
	if err := take("b", "2"); err != nil {
		t.Fatal(err)
	}
	l.must(&HostTagged{"lab", "b", "b-2", "n9", "p", muster.NodeHold})
	want("a: a-1 of n1; b: b-2 of n9; ")
	if _, err := l.do(&HostTagged{"lab", "b", "b-1", "n9", "p", ""}); !muster.IsKind(err, muster.FaultNotFound) {
		t.Errorf("tags of what is not there: %v", err)
	}
	// What was released by somebody else stays released.
	l.must(&HostReleased{"lab", "a", "a-1", true})
	l.must(&HostReleased{"lab", "a", "a-7", false})
	want("a: a-1 of n1 owed; b: b-2 of n9; ")
	if err := take("a", "3"); !muster.IsKind(err, muster.FaultConflict) {
		t.Errorf("a host that is to be cleared: %v", err)
	}
	l.must(&HostReleased{"lab", "a", "a-1", false})
	want("b: b-2 of n9; ")
	if err := take("a", "1"); err != nil {
		t.Error(err)
	}
	l.must(&HostsFound{"lab", []HostFound{{Name: "b", Address: "10.0.0.2"}, {Name: "c", Address: "10.0.0.3"}}})
	l.must(&HostsFound{"lab", []HostFound{{Name: "c", Address: "10.0.0.4"}}})
	want("a: a-1 of n1; b: b-2 of n9; c: at 10.0.0.4; ")
	if got := hostsOf(l.s.Latest(), "other"); got != "" {
		t.Errorf("another provider has %q", got)
	}
	restored, _ := New(16)
	if err := restored.Restore(bytes.NewReader(image(t, l.s))); err != nil {
		t.Fatal(err)
	}
	check(t, restored.Latest())
	if got, was := hostsOf(restored.Latest(), "lab"), hostsOf(l.s.Latest(), "lab"); got != was {
		t.Errorf("restored %q, was %q", got, was)
	}
}
