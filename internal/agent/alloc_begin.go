package agent

import (
	"context"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/journal"
	"github.com/musterhq/muster/internal/agent/launch"
)

// startTimeout bounds Runtime.Start.
const startTimeout = time.Minute

// findRuntime finds the runtime for the spec, or why this node cannot carry it out.
func (al *allocation) findRuntime(context.Context) error {
	rt, f := al.node.check(al.spec)
	if f != nil {
		return f
	}
	al.mu.Lock()
	al.runtime = rt
	al.mu.Unlock()
	return nil
}

// awaitGuard waits until an exclusive allocation may run.
func (al *allocation) awaitGuard(ctx context.Context) error {
	if !al.exclusive || al.node.guard.Holds() {
		return nil
	}
	al.publish(starting)
	if !al.node.guard.Await(ctx, al.stop) {
		return errHalted
	}
	return nil
}

// begin asks the runtime, once and never again. Only so many allocations do it at a time.
func (al *allocation) begin(ctx context.Context) (*box, error) {
	n := al.node
	select {
	case n.starts <- struct{}{}:
	default:
		// Only an allocation that waits says that it is starting: otherwise the next report says
		// that it runs.
		al.publish(starting)
		if err := al.take(ctx, n.starts); err != nil {
			return nil, err
		}
	}
	defer func() { <-n.starts }()
	if err := al.halted(ctx); err != nil {
		return nil, err
	}
	c, err := al.plan().Process()
	if err == nil && al.image != nil {
		if f := al.contain(ctx, &c); f != nil {
			return nil, f
		}
	}
	if err == nil {
		err = al.dir.Append(journal.Step{Begun: &journal.Begun{Runtime: al.runtime.Name(), At: muster.At(time.Now()), Image: al.digest()}})
	}
	if err != nil {
		return nil, contract.Failure(muster.FailureNode, muster.ReasonNodeFault, "sandbox directory: %v", err)
	}
	limit, f := al.markBegun()
	if f != nil {
		return nil, f
	}
	if al.exclusive {
		n.guard.Keep()
	}
	sandbox, err := al.ask(ctx, c, limit)
	if err != nil {
		return nil, contract.AsFailure(err, muster.FailureNode, muster.ReasonNodeFault, "runtime "+al.runtime.Name())
	}
	if err := al.dir.Append(journal.Step{Ran: muster.At(sandbox.Started())}); err != nil {
		n.log.Warn("that an allocation runs is not on disk", "alloc", al.id, "error", err) // a restarted agent finds it all the same
	}
	return al.open(sandbox), nil
}

// plan is what is known of the allocation before it is started.
func (al *allocation) plan() launch.Plan { return launch.Plan{ID: al.id, Dir: al.dir, Spec: al.spec} }

// contain changes the configuration of a process to that of a container, with its network. finish
// releases that, also if the start fails.
func (al *allocation) contain(ctx context.Context, c *contract.SandboxConfig) *muster.Failure {
	if f := al.plan().Contain(c, al.image); f != nil {
		return f
	}
	if f := al.mountVolumes(c); f != nil {
		return f
	}
	if f := al.equip(c); f != nil || !isolated(al.spec) {
		return f
	}
	return al.takeNetwork(ctx, c.Container)
}

// equip gives the container the devices that it was granted. A node that has fewer than its offering
// says is at fault.
func (al *allocation) equip(c *contract.SandboxConfig) *muster.Failure {
	if len(al.spec.Devices) == 0 {
		return nil
	}
	given, err := al.node.devices.Give(al.spec.Devices)
	if err != nil {
		return contract.Failure(muster.FailureNode, muster.ReasonNodeFault, "devices: %v", err)
	}
	launch.Equip(c, given)
	return nil
}

// markBegun makes the allocation one that has begun, and says for how long the start may take. The
// guard of an exclusive one is looked at under the mutex: from here on the guard's watch sees the
// allocation.
func (al *allocation) markBegun() (limit time.Duration, f *muster.Failure) {
	limit = startTimeout
	al.mu.Lock()
	defer al.mu.Unlock()
	if al.exclusive {
		left, fence := al.node.guard.Left()
		if left <= 0 {
			return 0, al.node.lapsed(fence)
		}
		limit = min(limit, left)
	}
	al.begun = true
	return limit, nil
}

// ask calls Runtime.Start. A start that is under way when the agent ends is finished: the next
// agent would find half of one dead.
func (al *allocation) ask(ctx context.Context, c contract.SandboxConfig, limit time.Duration) (contract.Sandbox, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	al.calls <- struct{}{}
	defer func() { <-al.calls }()
	return al.runtime.Start(ctx, c)
}
