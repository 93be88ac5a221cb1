package metadata

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	wire "github.com/musterhq/muster/internal/wire/agent"
)

// Paths of Compute Engine's service (Google, "Preemptible VM instances" and "Monitor and plan for a
// host maintenance event").
const (
	gceFlavor          = "Metadata-Flavor"
	gcePreemptedPath   = "/computeMetadata/v1/instance/preempted"
	gceMaintenancePath = "/computeMetadata/v1/instance/maintenance-event"
	// gcePreemptedIn is how long after the first sign of preemption a machine ends.
	gcePreemptedIn = 30 * time.Second
	// gceMaintenanceIn is the least time between the first sign of maintenance and its start.
	gceMaintenanceIn = time.Minute
)

type gce struct{ *service }

func (g *gce) read(ctx context.Context, now time.Time, seen wire.Notice) (wire.Notice, error) {
	preempted, err := g.get(ctx, gcePreemptedPath)
	if err != nil {
		return wire.Notice{}, err
	}
	maintenance, err := g.get(ctx, gceMaintenancePath)
	if err != nil {
		return wire.Notice{}, err
	}
	return parseGCE(preempted, maintenance, now, seen), nil
}

func (g *gce) get(ctx context.Context, path string) ([]byte, error) {
	body, err := g.ask(ctx, http.MethodGet, path, gceFlavor, "Google")
	if errors.Is(err, errAbsent) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return bytes.TrimSpace(body), nil
}

// parseGCE reads both values. A machine that is migrated goes on running, so that is no notice.
func parseGCE(preempted, maintenance []byte, now time.Time, seen wire.Notice) wire.Notice {
	switch {
	case string(preempted) == "TRUE":
		return after(wire.NoticeTaken, gcePreemptedIn, now, seen)
	case string(maintenance) == "TERMINATE_ON_HOST_MAINTENANCE":
		return after(wire.NoticeMaintenance, gceMaintenanceIn, now, seen)
	}
	return wire.Notice{}
}
