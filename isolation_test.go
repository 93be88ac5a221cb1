package muster_test

import (
	"testing"

	"github.com/musterhq/muster"
)

// A node passes the conditions of who demands an isolation exactly if its own gives it.
func TestIsolationNeeds(t *testing.T) {
	for _, has := range []muster.Isolation{"", "process", "container", "container-userns", "runsc"} {
		for _, want := range []muster.Isolation{"container", "container-userns", "runsc", "kata"} {
			met := true
			for _, c := range want.Needs() {
				met = met && c.Met(string(has), has != "")
			}
			if met != has.Gives(want) {
				t.Errorf("a node with %q meets the conditions of %q: %v", has, want, met)
			}
		}
	}
	needs := muster.RuntimeNeeds("crun")
	for version, is := range map[string]bool{"crun 1.8.1": true, "crun": true, "crun-vm 1": false, "runc 1": false, "": false} {
		if needs.Met(version, version != "") != is || muster.IsRuntime(version, "crun") != is {
			t.Errorf("%q is crun: %v", version, !is)
		}
	}
}

func TestIsolationGives(t *testing.T) {
	all := []muster.Isolation{"process", "container", "container-userns", "runsc"}
	gives := map[muster.Isolation][]muster.Isolation{
		"":                 {""},
		"process":          {"", "process"},
		"container":        {"", "process", "container"},
		"container-userns": {"", "process", "container", "container-userns"},
		"runsc":            {"", "process", "container", "runsc"},
	}
	for has, list := range gives {
		for _, want := range append(all, "", "kata", "nonsense") {
			ok := false
			for _, l := range list {
				ok = ok || l == want
			}
			if has.Gives(want) != ok {
				t.Errorf("%q gives %q: %v", has, want, !ok)
			}
		}
	}
}
