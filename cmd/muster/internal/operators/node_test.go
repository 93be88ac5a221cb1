package operators

import (
	"slices"
	"testing"
)

func TestProblemsAreSentences(t *testing.T) {
	got := sentences([]string{
		"network bridge does not work here: it needs /dev/net/tun; root allows it with `chmod 666 /dev/net/tun`",
		"memory limits are not enforced.", "/dev/nvidia0 is missing",
	})
	want := []string{
		"- Network bridge does not work here: it needs /dev/net/tun. Root allows it with `chmod 666 /dev/net/tun`.",
		"- Memory limits are not enforced.", "- /dev/nvidia0 is missing.",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
