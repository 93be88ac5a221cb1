package journal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	wire "github.com/musterhq/muster/internal/wire/agent"
)

// Lock is the right to be the one agent of a directory, or to take the directory apart.
type Lock struct{ f *os.File }

// Release gives the lock up. It may be called twice.
func (l *Lock) Release() {
	if l != nil && l.f != nil {
		_ = l.f.Close()
		l.f = nil
	}
}

// ErrLocked says that another agent holds the lock of the directory.
var ErrLocked = errors.New("another agent runs there")

// TryLock takes the lock of dir if it is free, else the error is ErrLocked.
func TryLock(dir string) (*Lock, error) {
	path := filepath.Join(dir, LockName)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, ErrLocked
		}
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	// Another process may have taken the directory apart meanwhile. The lock is then of a file that
	// is unlinked by now, and so of no directory.
	mine, err1 := f.Stat()
	there, err2 := os.Stat(path)
	if err1 != nil || err2 != nil || !os.SameFile(mine, there) {
		_ = f.Close()
		return nil, fmt.Errorf("%s: the directory was removed", dir)
	}
	return &Lock{f: f}, nil
}

// Times of taking the lock from another agent.
const (
	askFor    = 5 * time.Second
	killFor   = 5 * time.Second
	lockRetry = 3 * time.Millisecond
)

// TakeLock makes sure that no agent runs in dir, and that none starts before the lock is released.
// It does not touch sandboxes. With ask it first asks the agent there to step down, and kills that
// agent only if it does not.
func TakeLock(ctx context.Context, dir string, ask bool) (*Lock, error) {
	lock, err := TryLock(dir)
	if !errors.Is(err, ErrLocked) {
		return lock, err
	}
	if ask {
		askCtx, cancel := context.WithTimeout(ctx, askFor)
		defer cancel()
		c := wire.NewClient(Dialer(dir))
		defer c.Close()
		if err := c.StepDown(askCtx); err == nil {
			lock, err = waitLock(askCtx, dir, nil)
			if !errors.Is(err, ErrLocked) {
				return lock, err
			}
		}
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	killCtx, cancel := context.WithTimeout(ctx, killFor)
	defer cancel()
	lock, err = waitLock(killCtx, dir, func() error {
		// The record is read again each time: an agent that has only just started has not written
		// its own yet.
		r, err := ReadRecord(dir)
		if err != nil {
			return nil
		}
		return r.Kill()
	})
	if err != nil {
		return nil, fmt.Errorf("agent of %s: %w", dir, err)
	}
	return lock, nil
}

// waitLock tries for the lock until ctx ends. It calls before, if not nil, ahead of each try.
func waitLock(ctx context.Context, dir string, before func() error) (*Lock, error) {
	retry := time.NewTicker(lockRetry)
	defer retry.Stop()
	for {
		if before != nil {
			if err := before(); err != nil {
				return nil, err
			}
		}
		lock, err := TryLock(dir)
		if !errors.Is(err, ErrLocked) {
			return lock, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-retry.C:
		}
	}
}
