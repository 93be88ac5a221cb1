package httpapi

import (
	"cmp"
	"context"
	"net/http"

	"github.com/musterhq/muster/api"
)

func (a *API) statsRoutes() {
	register(a, inside(http.MethodGet, "/stats", "get-stats", "Show what an allocation uses", "As measured now, and what it asked for."), a.getStats)
}

type statsOut struct{ Body api.AllocStats }

func (a *API) getStats(ctx context.Context, in *AllocPath) (*statsOut, error) {
	al, err := in.find(a.cfg.State.Latest())
	if err != nil {
		return nil, err
	}
	s, err := a.cfg.Sandboxes.AllocStats(ctx, al)
	if err != nil {
		return nil, notEntered(err)
	}
	asked := &al.Run.Spec.Resources
	return &statsOut{api.AllocStats{
		At: s.At.Std().UTC(), CPUSeconds: float64(max(s.CPUMicros, 0)) / 1e6, CPU: asked.CPU, CPUMax: asked.CPUMax,
		Memory: max(int64(s.Memory), 0), MemoryMax: int64(asked.Memory), Pids: max(s.Pids, 0), PidsMax: cmp.Or(asked.Pids, max(s.PidsMax, 0)),
		Disk: max(int64(s.Disk), 0), DiskMax: cmp.Or(int64(asked.Disk), max(int64(s.DiskMax), 0)),
	}}, nil
}
