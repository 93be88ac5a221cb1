package operators

import (
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster/api"
)

func TestOfferRows(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	rows := offerRows([]api.PoolOffer{
		{Offering: "small", Provider: "aws", Market: "spot", Zone: "a", CPU: 2, Memory: 4 << 30, Price: 0.02, PerCore: 0.01, PerGiB: 0.005, Available: true},
		{Offering: "gone", Provider: "aws", Market: "on-demand"},
		{Offering: "full", Provider: "aws", Market: "on-demand", Blocked: &api.Block{Until: now.Add(90 * time.Second), Why: "no capacity\nnow"}},
		{Offering: "again", Provider: "aws", Market: "on-demand", Available: true, Blocked: &api.Block{Over: true, Why: "no capacity"}},
	}, now)
	var lines []string
	for _, r := range rows {
		lines = append(lines, strings.Join(r, " | "))
	}
	want := []string{
		"small | aws | a | spot | 2 | 4GiB | 0.0200 | 0.0100 | 0.0050 | yes | ",
		"gone | aws | - | on-demand | 0 | 0B | 0.0000 | 0.0000 | 0.0000 | no | the provider has none now",
		"full | aws | - | on-demand | 0 | 0B | 0.0000 | 0.0000 | 0.0000 | in 1m30s | no capacity·now",
		"again | aws | - | on-demand | 0 | 0B | 0.0000 | 0.0000 | 0.0000 | to be tried | no capacity",
	}
	if got := strings.Join(lines, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("got\n%s", got)
	}
}
