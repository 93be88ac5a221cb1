package runtimetest

import (
	"slices"
	"testing"

	"github.com/musterhq/muster/internal/agent/initbox"
)

// Outlived checks that a sandbox has outlived its agent: its init and its command are the same
// processes. What the command starts comes and goes.
func Outlived(t *testing.T, before, after []initbox.Member) {
	t.Helper()
	descendant := func(m initbox.Member) bool { return m.Role == initbox.RoleDescendant }
	was, is := slices.DeleteFunc(slices.Clone(before), descendant), slices.DeleteFunc(slices.Clone(after), descendant)
	if len(is) != 2 || !slices.Equal(is, was) {
		t.Errorf("before %v, after %v", before, after)
	}
}
