package submit

import (
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
)

func TestUIDsSortByTime(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var last muster.JobUID
	seen := map[muster.JobUID]bool{}
	for i := range 5000 {
		uid := newUID(at.Add(time.Duration(i) * time.Millisecond))
		if len(uid) != 16 || uid <= last || strings.ContainsAny(string(uid), "-/.") {
			t.Fatalf("%q after %q", uid, last)
		}
		last = uid
	}
	for range 5000 {
		uid := newUID(at)
		if seen[uid] {
			t.Fatalf("%q was drawn twice", uid)
		}
		seen[uid] = true
	}
}
