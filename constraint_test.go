package muster_test

import (
	"testing"

	"github.com/musterhq/muster"
)

// What each operator says, of values and of attributes that are not set.
func TestPlaceConstraintOperators(t *testing.T) {
	const unset = "\x00"
	for _, tc := range []struct {
		has, op, value string
		want           bool
	}{
		{unset, "=", "", false}, {unset, "=", "foo", false}, {"foo", "=", "foo", true}, {"foo", "=", "bar", false},
		{unset, "!=", "foo", true}, {"foo", "!=", "foo", false}, {"bar", "!=", "foo", true},
		{unset, "!=", "", false}, // nothing does not differ from nothing
		{"10", "<", "1", false}, {"9", "<", "10", true}, {"10", ">", "9", true}, {"1e1", ">=", "10", true}, {"10", "<=", "10.0", true},
		{"b10", "<", "b9", true}, // text, as one is no number
		{unset, "<", "1", false},
		{"1.2.3", "version", "~> 1.0", true}, {"2.0.0", "version", "~> 1.0", false}, {"1.2.9", "version", "~> 1.2.3", true},
		{"1.3.0", "version", "~> 1.2.3", false}, {"1.2.0", "version", "~> 1.2.3", false}, {"2", "version", "~> 1", false}, {"1.9", "version", "~> 1", true},
		{"1.3.0-beta1", "version", ">= 0.6.1", false}, {"1.3.0-beta2", "version", ">= 1.3.0-beta1", true}, {"1.3.0", "version", "> 1.3.0-rc.1", true},
		{"1.3.0-rc.2", "version", "< 1.3.0-rc.10", true}, {"v1.4", "version", ">= 1.2, < 2", true}, {"2.1", "version", ">= 1.2, < 2", false},
		{"1.0+build5", "version", "= 1.0.0", true}, {"1.0.1", "version", "!= 1", true}, {"nightly", "version", "> 0", false},
		{"foo,bar,baz", "set-contains", "foo,  bar  ", true}, {"foo,bar", "set-contains", "foo,qux", false}, {unset, "set-contains", "foo", false},
		{"foobar", "regexp", "^foo", true}, {"foobar", "regexp", "^bar", false}, {"foobar", "regexp", "oba", true}, {unset, "regexp", ".*", false},
		{unset, "is-set", "", false}, {"", "is-set", "", true}, {unset, "is-not-set", "", true}, {"x", "is-not-set", "", false},
	} {
		c := muster.Constraint{Attribute: "a", Op: tc.op, Value: tc.value}
		for _, ready := range []bool{false, true} {
			if ready {
				c.Ready()
			}
			if got := c.Met(tc.has, tc.has != unset); got != tc.want {
				t.Errorf("%q %s %q is %v, want %v", tc.has, tc.op, tc.value, got, tc.want)
			}
		}
	}
	in := muster.Constraint{Attribute: "a", Op: "in", Values: []string{"x", "y"}}
	out := muster.Constraint{Attribute: "a", Op: "not-in", Values: []string{"x", "y"}}
	for _, tc := range []struct {
		has     string
		in, out bool
	}{{"y", true, false}, {"z", false, true}, {unset, false, true}} {
		set := tc.has != unset
		if in.Met(tc.has, set) != tc.in || out.Met(tc.has, set) != tc.out {
			t.Errorf("%q: in %v, not-in %v", tc.has, in.Met(tc.has, set), out.Met(tc.has, set))
		}
	}
	for _, bad := range []muster.Constraint{{Op: "regexp", Value: "("}, {Op: "version", Value: ">= x"}, {Op: "version", Value: "=> 1"}, {Op: "version", Value: ""}} {
		if bad.Check() == nil {
			t.Errorf("%s: no error", bad.String())
		}
	}
}
