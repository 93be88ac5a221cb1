package agent

import (
	"context"
	"errors"

	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/wait"
)

// box is an open sandbox with the number of those who use it; the last closes it.
type box struct {
	sandbox contract.Sandbox
	refs    int // guarded by the allocation's mutex
}

// open shares a sandbox; the caller holds one use of it.
func (al *allocation) open(sandbox contract.Sandbox) *box {
	b := &box{sandbox: sandbox, refs: 1}
	al.mu.Lock()
	al.box = b
	al.mu.Unlock()
	close(al.opened)
	return b
}

// hold is one more use of an open sandbox, or nil if it is not open.
func (al *allocation) hold() *box {
	al.mu.Lock()
	defer al.mu.Unlock()
	if al.box != nil {
		al.box.refs++
	}
	return al.box
}

// drop ends one use; the last closes it.
func (al *allocation) drop(b *box) {
	al.mu.Lock()
	b.refs--
	last := b.refs == 0
	if last && al.box == b {
		al.box = nil
	}
	al.mu.Unlock()
	if last {
		if err := b.sandbox.Close(); err != nil {
			al.node.log.Warn("sandbox", "alloc", al.id, "error", err)
		}
	}
}

// openOutput opens the sandbox of an allocation for reading; nil if it never had one, or has none
// yet and await is not set. The caller drops it.
func (al *allocation) openOutput(ctx context.Context, await bool) (*box, error) {
	for {
		if b := al.hold(); b != nil {
			return b, nil
		}
		now := al.progress()
		if now.ended && !now.begun {
			return nil, nil
		}
		if now.ended {
			return al.reopen(ctx)
		}
		if !await && !now.begun {
			return nil, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-al.opened:
		}
		if !wait.Closed(al.done) {
			// Open, or closed again in the moment before its end is known.
			if b := al.hold(); b != nil {
				return b, nil
			}
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-al.done:
			}
		}
	}
}

// reopen attaches to the sandbox of an ended allocation, once for all who read it at the same time.
func (al *allocation) reopen(ctx context.Context) (*box, error) {
	select {
	case al.calls <- struct{}{}:
		defer func() { <-al.calls }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if b := al.hold(); b != nil {
		return b, nil
	}
	ctx, cancel := context.WithTimeout(ctx, attachTimeout)
	defer cancel()
	sandbox, err := al.runtime.Attach(ctx, string(al.dir))
	if errors.Is(err, contract.ErrNoSandbox) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	b := &box{sandbox: sandbox, refs: 1}
	al.mu.Lock()
	al.box = b
	al.mu.Unlock()
	return b, nil
}
