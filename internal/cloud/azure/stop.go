package azure

import (
	"context"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/driver"
	"github.com/musterhq/muster/internal/wait"
)

// Stop is cloud.Stopper's: it deallocates, since a machine that is only switched off is billed on.
// The disk stays and is paid for. Spot machines cannot come back reliably and are refused.
func (p *Provider) Stop(ctx context.Context, ids []muster.InstanceID) []error {
	return p.switchAll(ctx, ids, "stop", func(ctx context.Context, i *cloud.Instance) error {
		if i.Market == muster.Spot {
			return muster.Faultf(muster.FaultInvalid, "machine %s is a spot machine: it is deleted when it is evicted, and not stopped", i.ID)
		}
		_, err := p.vms.BeginDeallocate(ctx, p.cfg.ResourceGroup, string(i.ID), nil)
		return err
	})
}

// Start is cloud.Stopper's. It waits until Azure has found a place, for up to a minute.
func (p *Provider) Start(ctx context.Context, ids []muster.InstanceID) []error {
	return p.switchAll(ctx, ids, "start", func(ctx context.Context, i *cloud.Instance) error {
		o, err := p.vms.BeginStart(ctx, p.cfg.ResourceGroup, string(i.ID), nil)
		if err != nil {
			return err
		}
		return finish(ctx, p, o)
	})
}

// finish looks at an operation until it has ended. One that takes longer than a verdict may is left to
// itself.
func finish[T any](ctx context.Context, p *Provider, o *runtime.Poller[T]) error {
	bounded, cancel := context.WithTimeout(ctx, verdict)
	defer cancel()
	for !o.Done() {
		if !wait.For(bounded, p.cfg.Poll) {
			return nil
		}
		if _, err := o.Poll(bounded); err != nil && !o.Done() {
			return nil // it was accepted, and how it ends is not known yet
		}
	}
	_, err := o.Result(bounded)
	return err
}

// switchAll does one thing with each instance. The errors are in the order of the ids.
func (p *Provider) switchAll(ctx context.Context, ids []muster.InstanceID, verb string, do func(context.Context, *cloud.Instance) error) []error {
	errs := make([]error, len(ids))
	driver.Each(len(ids), driver.AtOnce, func(n int) {
		m, seen := p.known(ids[n])
		if !seen {
			vm, _, err := p.read(ctx, ids[n])
			if err != nil {
				errs[n] = err
				return
			}
			m.instance = p.learn(vm)
		}
		traced, sent := driver.Trace(ctx)
		err := do(traced, &m.instance)
		if err == nil {
			// A public address may be another one afterwards.
			p.change(ids[n], func(m *machine) { m.address, m.ran = "", true })
			p.address.Forget(0)
			return
		}
		f := p.fault(call{what: verb + " machine " + string(ids[n]), effect: driver.Makes, about: p.aboutOf(ctx, &m.instance), sent: sent}, err)
		if f.Kind == muster.FaultNotFound {
			p.forget(ids[n])
		}
		errs[n] = f
	})
	return errs
}
