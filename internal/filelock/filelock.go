// Package filelock waits for locks of files that other processes hold for a short time.
package filelock

import (
	"context"
	"os"
	"syscall"
	"time"
)

// Take locks a file for this descriptor alone, and tries again each so often while another one has the
// lock. It reports false when ctx ends first. The lock ends when the file is closed.
func Take(ctx context.Context, f *os.File, every time.Duration) bool {
	retry := time.NewTicker(every)
	defer retry.Stop()
	for syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		select {
		case <-ctx.Done():
			return false
		case <-retry.C:
		}
	}
	return true
}
