package metadata

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/musterhq/muster"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// Paths of Azure's service (Microsoft, "Scheduled Events for Linux VMs" and "Azure Instance Metadata
// Service").
const (
	azureField      = "Metadata"
	azureEventsPath = "/metadata/scheduledevents?api-version=2020-07-01"
	azureNamePath   = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
	// azurePreemptedIn is the least time between an event that says that a spot machine is evicted
	// and its end. An event that has begun says no time.
	azurePreemptedIn = 30 * time.Second
)

type azure struct {
	*service
	name string // of this machine; empty: not read yet
}

func (a *azure) read(ctx context.Context, now time.Time, seen wire.Notice) (wire.Notice, error) {
	if a.name == "" {
		b, err := a.ask(ctx, http.MethodGet, azureNamePath, azureField, "true")
		if err != nil {
			return wire.Notice{}, fmt.Errorf("the machine's name: %w", err)
		}
		a.name = strings.TrimSpace(string(b))
	}
	b, err := a.ask(ctx, http.MethodGet, azureEventsPath, azureField, "true")
	if err != nil {
		return wire.Notice{}, fmt.Errorf("scheduled events: %w", err)
	}
	n, err := parseAzure(b, a.name, now, seen)
	if err != nil {
		return wire.Notice{}, fmt.Errorf("scheduled events: %w", err)
	}
	return soon(n, now), nil
}

// parseAzure reads the events of one machine: the list has those of all machines of a scale set or an
// availability set. A machine that is frozen for some seconds goes on running, so that is no notice.
func parseAzure(b []byte, name string, now time.Time, seen wire.Notice) (out wire.Notice, err error) {
	var v struct {
		Events []struct {
			EventType string
			Resources []string
			NotBefore string
		}
	}
	if err := json.Unmarshal(b, &v); err != nil {
		return out, err
	}
	for _, e := range v.Events {
		if !slices.ContainsFunc(e.Resources, func(r string) bool { return strings.EqualFold(r, name) }) {
			continue
		}
		kind := wire.NoticeMaintenance
		switch e.EventType {
		case "Preempt", "Terminate":
			kind = wire.NoticeTaken
		case "Reboot", "Redeploy":
		default:
			continue
		}
		n := after(kind, azurePreemptedIn, now, seen)
		if e.NotBefore != "" {
			at, err := time.Parse(time.RFC1123, e.NotBefore)
			if err != nil {
				return wire.Notice{}, err
			}
			n.At = muster.At(at)
		}
		out = worse(out, n)
	}
	return out, nil
}
