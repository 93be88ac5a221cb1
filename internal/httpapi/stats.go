package httpapi

import (
	"context"
	"net/http"

	"github.com/musterhq/muster/api"
)

// statsHandlers show what allocations use.
type statsHandlers struct{ *API }

func (a statsHandlers) routes() {
	register(a.API, sandboxOperation(http.MethodGet, "/stats", "get-stats", "Show what an allocation uses", "As measured now, and what it asked for."), a.getStats)
}

type statsOut struct{ Body api.AllocStats }

func (a statsHandlers) getStats(ctx context.Context, in *AllocPath) (*statsOut, error) {
	stats, err := a.cfg.Inside.Stats(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	return &statsOut{*stats}, nil
}
