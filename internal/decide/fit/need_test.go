package fit_test

import (
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/state"
)

// A node without a volume is said to lack the volume, not to miss a condition on an attribute.
func TestMissingVolumeIsNamed(t *testing.T) {
	n := &state.Node{Attributes: map[string]string{muster.AttributeVolumes: "data,tmpfs"}}
	for _, tc := range []struct {
		read, write []string
		want        string
	}{
		{[]string{"data"}, nil, ""},
		{[]string{"models"}, nil, "the need for volume models"},
		{[]string{"data", "models"}, nil, "the need for volumes data, models"},
		{[]string{"data"}, []string{"data"}, "the need for writable volume data"},
	} {
		if got := fit.Feasible(&fit.Shape{Constraints: muster.VolumeNeeds(tc.read, tc.write)}, n); got != tc.want {
			t.Errorf("%v %v: %q, want %q", tc.read, tc.write, got, tc.want)
		}
	}
}
