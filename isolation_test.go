package muster_test

import (
	"testing"

	"github.com/musterhq/muster"
)

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
