package agent

import (
	"context"
	"errors"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/wait"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

const (
	// attachTimeout bounds one try of Runtime.Attach or Remove.
	attachTimeout = 10 * time.Second
	// reattachFor is how long a runtime that cannot tell is asked about a sandbox of an earlier
	// agent.
	reattachFor = time.Minute
)

// reattach finds the sandbox that an earlier agent started.
func (al *allocation) reattach(ctx context.Context) (*box, *wire.AllocReport) {
	began := time.Now()
	for delay := 50 * time.Millisecond; ; delay = min(2*delay, 5*time.Second) {
		sandbox, err := al.attach(ctx)
		if err == nil {
			return al.open(sandbox), nil
		}
		if errors.Is(err, contract.ErrNoSandbox) || time.Since(began) > reattachFor {
			// What cannot be found may still be there in part. It must be gone before the server
			// may start the member elsewhere.
			if e := al.remove(ctx); e == nil {
				if errors.Is(err, contract.ErrNoSandbox) && al.spec != nil && al.begins < maxBegins {
					return al.startAgain(ctx)
				}
				return nil, al.failed(contract.Failure(muster.FailureNode, muster.ReasonSandboxDied, "its sandbox could not be found by the restarted agent: %v", err))
			} else {
				err = e
			}
		}
		al.node.log.Warn("the sandbox of an earlier agent cannot be reached yet", "alloc", al.id, "error", err)
		if !wait.For(ctx, delay) {
			return nil, nil
		}
	}
}

// startAgain begins an allocation whose agent was killed between its mark and the making of its
// sandbox: nothing of it ever ran. It is no failure of the node.
func (al *allocation) startAgain(ctx context.Context) (*box, *wire.AllocReport) {
	al.node.log.Info("the agent before was ended as it was about to start it: started again", "alloc", al.id)
	al.image.Free()
	al.image = nil
	al.mu.Lock()
	al.begun = false
	al.mu.Unlock()
	return al.start(ctx)
}

// attach calls Runtime.Attach with a deadline, by one at a time.
func (al *allocation) attach(ctx context.Context) (contract.Sandbox, error) {
	ctx, cancel := context.WithTimeout(ctx, attachTimeout)
	defer cancel()
	select {
	case al.calls <- struct{}{}:
		defer func() { <-al.calls }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return al.runtime.Attach(ctx, string(al.dir))
}

func (al *allocation) remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, attachTimeout)
	defer cancel()
	al.calls <- struct{}{}
	defer func() { <-al.calls }()
	return al.runtime.Remove(ctx, string(al.dir))
}
