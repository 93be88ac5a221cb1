package fake

import (
	"golang.org/x/sys/unix"

	"github.com/musterhq/muster/internal/agent/contract"
)

// freeze makes the steps stand still, or go on. One that is stopping or over is not frozen.
func (b *body) freeze(yes bool) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case yes && (b.over || b.stopped):
		return contract.ErrNoSandbox
	case yes && !b.frozen:
		b.frozen, b.thawed = true, make(chan struct{})
	case !yes:
		b.thawLocked()
	}
	return nil
}

func (b *body) thawLocked() {
	if b.frozen {
		b.frozen = false
		close(b.thawed)
	}
}

// stand waits while it is frozen.
func (b *body) stand() *ending {
	for {
		b.mu.Lock()
		frozen, thawed := b.frozen, b.thawed
		b.mu.Unlock()
		if !frozen {
			return nil
		}
		select {
		case <-b.killed:
			return &ending{signal: unix.SIGKILL}
		case <-thawed:
		}
	}
}
