package operators

import (
	"bytes"
	"testing"
	"time"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/cmd/muster/internal/cli"
)

func TestMonthOfSince(t *testing.T) {
	now := time.Date(2026, 3, 1, 1, 0, 0, 0, time.FixedZone("east", 2*3600)) // still February in UTC
	for since, want := range map[string]string{
		"": "", "2026-09": "2026-09", "2025-12-31": "2025-12", "0s": "2026-02", "720h": "2026-01", "1h30m": "2026-02",
		"2026": "!", "2026-13": "!", "September": "!", "-3h": "!", "30d": "2026-01",
	} {
		got, err := month(since, now)
		if err != nil {
			got = "!"
		}
		if got != want {
			t.Errorf("%q: %q, want %q", since, got, want)
		}
	}
}

// Rows of what is not told apart any more, of what has no price, and names from elsewhere.
func TestPrintCost(t *testing.T) {
	amount := func(cost, hours float64) api.CostAmount { return api.CostAmount{Cost: cost, Hours: hours} }
	at := time.Date(2026, 9, 1, 0, 0, 0, 0, time.UTC)
	idle := amount(0, 0.5)
	for _, c := range []struct {
		cost api.Cost
		want string
	}{
		{api.Cost{By: "job", Since: at, Until: at.Add(90 * time.Minute), Total: amount(1234.5, 200), Idle: amount(34.5, 50), More: &api.CostRest{Rows: 7, CostAmount: amount(0.00001, 1)},
			Rows: []api.CostRow{{Namespace: "team", Job: "a\x1b[2J", CostAmount: amount(1000, 100)}, {Namespace: "team", CostAmount: amount(199.9, 40)}, {CostAmount: amount(0.1, 0.001)}}}, `JOB               COST     NODE TIME  OF ALL
team/a·[2J        1000.00  4d4h       81.0%
(others in team)  199.90   40h0m      16.2%
(others)          0.1000   3.6s       0.0%
(7 more)          <0.0001  1h0m       0.0%
(idle)            34.50    2d2h       2.8%
(all)             1234.50  8d8h       100.0%
from 2026-09-01 to 2026-09-01 01:30 UTC
`},
		{api.Cost{By: "pool", Since: at, Until: at, Total: amount(0, 2), Idle: idle, Rows: []api.CostRow{{Pool: "p", CostAmount: amount(0, 2), Idle: &idle}}}, `POOL   COST  NODE TIME  OF ALL  IDLE  OF IT
p      0     2h0m       100.0%  0     25.0%
(all)  0     2h0m       100.0%  0     25.0%
from 2026-09-01 to 2026-09-01 00:00 UTC
`},
	} {
		var out bytes.Buffer
		printCost((&cli.App{Stdout: &out, Stderr: &out}), &c.cost)
		if out.String() != c.want {
			t.Errorf("got\n%s\nwant\n%s", out.String(), c.want)
		}
	}
}
