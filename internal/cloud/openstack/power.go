package openstack

import (
	"context"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud/driver"
)

// change is an action that brings a server into another state.
type change struct {
	verb string
	// to is the state that it leads to, and task Nova's word for being on the way there.
	to, task string
	do       func(ctx context.Context, c *gophercloud.ServiceClient, id string) error
}

// Suspend is cloud.Suspender's. The hypervisor writes the memory to its disk; quota and, with most
// operators, the price stay.
func (p *Provider) Suspend(ctx context.Context, ids []muster.InstanceID) []error {
	return p.changeAll(ctx, ids, change{"suspend", statusSuspended, "suspending", func(ctx context.Context, c *gophercloud.ServiceClient, id string) error {
		return servers.Suspend(ctx, c, id).ExtractErr()
	}})
}

// Resume is cloud.Suspender's.
func (p *Provider) Resume(ctx context.Context, ids []muster.InstanceID) []error {
	return p.changeAll(ctx, ids, change{"resume", statusActive, "resuming", func(ctx context.Context, c *gophercloud.ServiceClient, id string) error {
		return servers.Resume(ctx, c, id).ExtractErr()
	}})
}

// Stop is cloud.Stopper's.
func (p *Provider) Stop(ctx context.Context, ids []muster.InstanceID) []error {
	return p.changeAll(ctx, ids, change{"stop", statusShutoff, "powering-off", func(ctx context.Context, c *gophercloud.ServiceClient, id string) error {
		return servers.Stop(ctx, c, id).ExtractErr()
	}})
}

// Start is cloud.Stopper's.
func (p *Provider) Start(ctx context.Context, ids []muster.InstanceID) []error {
	return p.changeAll(ctx, ids, change{"start", statusActive, "powering-on", func(ctx context.Context, c *gophercloud.ServiceClient, id string) error {
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
	case now.Status == c.to && now.TaskState == "", now.TaskState == c.task:
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
		return p.fault(call{what: what, sent: sent}, err)
	}
	return nil
}
