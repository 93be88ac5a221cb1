package gce

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud/driver"
)

// change is a way to switch instances off or on.
type change struct {
	// verb is the method's name.
	verb string
	// already are the states in which nothing is to do, never those in which it cannot be done.
	already, never []string
	// launches: it needs capacity.
	launches bool
}

var (
	off = []string{"TERMINATED", "STOPPING"}
	on  = []string{"RUNNING", "PROVISIONING", "STAGING", "REPAIRING"}

	stop    = change{verb: "stop", already: off}
	start   = change{verb: "start", already: on, never: []string{"SUSPENDED", "SUSPENDING"}, launches: true}
	suspend = change{verb: "suspend", already: []string{"SUSPENDED", "SUSPENDING"}, never: off}
	resume  = change{verb: "resume", already: on, never: off, launches: true}
)

// Stop is cloud.Stopper's. A stopped instance costs its disk.
func (p *Provider) Stop(ctx context.Context, ids []muster.InstanceID) []error {
	return p.power(ctx, ids, stop)
}

// Start is cloud.Stopper's.
func (p *Provider) Start(ctx context.Context, ids []muster.InstanceID) []error {
	return p.power(ctx, ids, start)
}

// Suspend is cloud.Suspender's. A suspended instance costs its disk, and its memory as storage.
func (p *Provider) Suspend(ctx context.Context, ids []muster.InstanceID) []error {
	return p.power(ctx, ids, suspend)
}

// Resume is cloud.Suspender's.
func (p *Provider) Resume(ctx context.Context, ids []muster.InstanceID) []error {
	return p.power(ctx, ids, resume)
}

func (p *Provider) power(ctx context.Context, ids []muster.InstanceID, to change) []error {
	errs := make([]error, len(ids))
	driver.Each(len(ids), atOnce, func(i int) { errs[i] = p.switchOne(ctx, ids[i], to) })
	return errs
}

func (p *Provider) switchOne(ctx context.Context, id muster.InstanceID, to change) error {
	g, err := p.read(ctx, id)
	switch {
	case err != nil:
		return err
	case slices.Contains(to.already, g.Status):
		return nil
	case slices.Contains(to.never, g.Status):
		return muster.Faultf(muster.FaultInvalid, "%s instance %s: it is %s", to.verb, id, g.Status)
	}
	c := call{what: to.verb + " instance " + string(id), launches: to.launches}
	if to.launches {
		i := p.learn(g)
		c.offering, c.zone, c.market, c.family = i.Offering, i.Zone, i.Market, family(i.Zone, string(i.Offering), g.gpus(), i.Market)
	}
	var op operation
	if err := p.do(ctx, c, http.MethodPost, instancePath(id)+"/"+to.verb, nil, nil, &op); err != nil {
		return err
	}
	zone, _, _ := strings.Cut(string(id), "/")
	// An operation that is accepted and takes long is on its way.
	if err := p.await(ctx, c, zone, &op); err != nil && !errors.Is(err, errPending) {
		return err
	}
	return nil
}
