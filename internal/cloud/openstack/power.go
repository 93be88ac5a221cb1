package openstack

import (
	"context"
	"net/http"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud/driver"
)

// change is an action that brings a server into another state.
type change struct {
	verb string
	// to is the state that it leads to. Of from nothing else than an action can be made.
	to, from string
	do       func(ctx context.Context, c *gophercloud.ServiceClient, id string) error
}

// Suspend is cloud.Suspender's. The hypervisor writes the memory to its disk; quota and, with most
// operators, the price stay.
func (p *Provider) Suspend(ctx context.Context, ids []muster.InstanceID) []error {
	return p.changeAll(ctx, ids, change{"suspend", statusSuspended, statusActive, func(ctx context.Context, c *gophercloud.ServiceClient, id string) error {
		return servers.Suspend(ctx, c, id).ExtractErr()
	}})
}

// Resume is cloud.Suspender's.
func (p *Provider) Resume(ctx context.Context, ids []muster.InstanceID) []error {
	return p.changeAll(ctx, ids, change{"resume", statusActive, statusSuspended, func(ctx context.Context, c *gophercloud.ServiceClient, id string) error {
		return servers.Resume(ctx, c, id).ExtractErr()
	}})
}

// Stop is cloud.Stopper's.
func (p *Provider) Stop(ctx context.Context, ids []muster.InstanceID) []error {
	return p.changeAll(ctx, ids, change{"stop", statusShutoff, statusActive, func(ctx context.Context, c *gophercloud.ServiceClient, id string) error {
		return servers.Stop(ctx, c, id).ExtractErr()
	}})
}

// Start is cloud.Stopper's.
func (p *Provider) Start(ctx context.Context, ids []muster.InstanceID) []error {
	return p.changeAll(ctx, ids, change{"start", statusActive, statusShutoff, func(ctx context.Context, c *gophercloud.ServiceClient, id string) error {
		return servers.Start(ctx, c, id).ExtractErr()
	}})
}

func (p *Provider) changeAll(ctx context.Context, ids []muster.InstanceID, c change) []error {
	errs := make([]error, len(ids))
	driver.Each(len(ids), driver.AtOnce, func(i int) { errs[i] = p.change(ctx, ids[i], c) })
	return errs
}

// change makes the change, unless the server has the state already or is on its way to it.
func (p *Provider) change(ctx context.Context, id muster.InstanceID, c change) error {
	now, err := p.read(ctx, id)
	switch {
	case err != nil:
		return err
	case now.Status == c.to && now.TaskState == "":
		return nil
	}
	what := c.verb + " server " + string(id)
	if now.Status == statusError {
		return muster.Faultf(muster.FaultInvalid, "%s: it is in status ERROR", what)
	}
	s, err := p.session(ctx, what)
	if err != nil {
		return err
	}
	ctx, sent := driver.Trace(ctx)
	if err := c.do(ctx, s.compute, string(id)); err != nil {
		f := p.fault(call{what: what, sent: sent}, err)
		if status(err) == http.StatusConflict && now.Status == c.from && now.TaskState == "" && f.Kind == muster.FaultTransient {
			// The state was right, so another call of the same kind came first, or will be over soon.
			f.Message += ": it is busy"
		}
		return f
	}
	return nil
}
