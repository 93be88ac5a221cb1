package jobs

import (
	"fmt"
	"testing"
)

func TestMemberRanges(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "[] <nil>"},
		{[]string{"7"}, "[7] <nil>"},
		{[]string{"3,1", "1-4"}, "[1 2 3 4] <nil>"},
		{[]string{"0-0"}, "[0] <nil>"},
		{[]string{","}, `[] "," names no member; give an index as 7, or the first and the last as 20-29`},
		{[]string{"-1"}, `[] "-1" is no member; give an index as 7, or the first and the last as 20-29`},
		{[]string{"4-3"}, `[] "4-3" is no member; give an index as 7, or the first and the last as 20-29`},
		{[]string{"a"}, `[] "a" is no member; give an index as 7, or the first and the last as 20-29`},
		{[]string{"1-"}, `[] "1-" is no member; give an index as 7, or the first and the last as 20-29`},
		{[]string{"0-10000"}, "[] 0-10000 names more than 10000 members; without members all that failed are retried"},
		{[]string{"1", "0-9223372036854775807"}, "[] 0-9223372036854775807 names more than 10000 members; without members all that failed are retried"},
	} {
		got, err := memberRanges(c.args)
		if s := fmt.Sprint(got, " ", err); s != c.want {
			t.Errorf("%q: %s, want %s", c.args, s, c.want)
		}
	}
	if got, err := memberRanges([]string{"0-9999"}); len(got) != 10_000 || err != nil {
		t.Errorf("%d members, %v", len(got), err)
	}
}
