package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/present"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/state"
)

// costHandlers show what was spent.
type costHandlers struct{ *API }

func (a costHandlers) routes() {
	register(a.API, operation(http.MethodGet, "/v1/cost", "get-cost", tagCost, "Show what was spent",
		"Every node's cost is split into the shares of the allocations that it had, and what was idle. An allocation's share is the mean of its parts of the node's cores and memory, "+
			"from when it was placed to its end. Nodes and allocations that live are counted up to now. Cost is kept by calendar month (UTC)."), a.showCost)
}

type costIn struct {
	By    string `query:"by" enum:"job,namespace,pool,month" default:"job" doc:"What the rows are."`
	Since string `query:"since" pattern:"^[0-9]{4}-(0[1-9]|1[0-2])$" doc:"First month included, for example 2026-09. Default: this month."`
	Limit int    `query:"limit" minimum:"1" maximum:"10000" default:"1000" doc:"Most rows; the sum of the others is in more."`
}

type costOut struct{ Body api.Cost }

func (a costHandlers) showCost(_ context.Context, in *costIn) (*costOut, error) {
	snap := a.cfg.State.Latest()
	now := max(a.cfg.Clock.Now(), snap.Meta().Time)
	since := state.MonthOf(now)
	if in.Since != "" {
		at, err := time.Parse("2006-01", in.Since)
		if err != nil {
			return nil, problem.Invalid("query.since", "%q is not a month as 2026-09", problem.Clip(in.Since))
		}
		since = state.MonthOf(muster.At(at))
	}
	return &costOut{present.Costs(snap, in.By, since, now, in.Limit)}, nil
}
