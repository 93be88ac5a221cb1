package initwire

import (
	"slices"
	"testing"
)

func TestOwners(t *testing.T) {
	m := []IDRange{{100000, 165536, 65536}, {0, 0, 1}}
	got, err := ParseOwners(FormatOwners(m))
	if err != nil || !slices.Equal(got, m) {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"", "1", "1:2", "1:2:3:4", "a:1:1", "1:1:1,"} {
		if m, err := ParseOwners(bad); err == nil {
			t.Errorf("%q is %v", bad, m)
		}
	}
}
