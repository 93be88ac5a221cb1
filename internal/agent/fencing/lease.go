package fencing

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/musterhq/muster/internal/atomicfile"
	"github.com/musterhq/muster/internal/wait"
)

const (
	leaseName = "lease.json"
	// leaseAgain is how long after an end that failed the next one is tried.
	leaseAgain = time.Minute
)

// Lease ends the machine when no server has spoken to it for too long: nobody else would end it
// then, and it costs money. A set that is obeyed renews the lease and says how long it is. The
// length is kept on disk: an agent that is started again while no server is there begins to count
// again.
type Lease struct {
	path string
	log  *slog.Logger
	// end ends the machine; nil: leases do nothing here.
	end func(ctx context.Context) error
	// changed holds a token when limit is another one.
	changed chan struct{}

	mu    sync.Mutex
	limit time.Duration // 0: none
	heard time.Time
}

// leaseFile is the content of lease.json.
type leaseFile struct {
	Millis int64 `json:"ms"`
}

// LoadLease reads how long the lease is, and counts from now. end ends the machine; nil: leases do
// nothing here.
func LoadLease(dir string, end func(context.Context) error, log *slog.Logger) (*Lease, error) {
	l := &Lease{path: filepath.Join(dir, leaseName), log: log, end: end, changed: make(chan struct{}, 1), heard: time.Now()}
	b, err := os.ReadFile(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	var f leaseFile
	if err == nil {
		err = json.Unmarshal(b, &f)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", l.path, err)
	}
	l.limit = time.Duration(f.Millis) * time.Millisecond
	return l, nil
}

// Renew notes that a server has spoken, and how long the lease is from now on. Called by one
// goroutine at a time.
func (l *Lease) Renew(millis int64) error {
	limit := time.Duration(millis) * time.Millisecond
	l.mu.Lock()
	same := limit == l.limit
	l.heard = time.Now()
	l.mu.Unlock()
	if same {
		return nil
	}
	b, err := json.Marshal(leaseFile{Millis: millis})
	if err == nil {
		err = atomicfile.Write(l.path, b)
	}
	if err != nil {
		return fmt.Errorf("keep the lease: %w", err)
	}
	l.mu.Lock()
	l.limit = limit
	l.mu.Unlock()
	wait.Poke(l.changed)
	return nil
}

// left is how long the lease lasts still; not ok if there is none.
func (l *Lease) left() (d time.Duration, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Until(l.heard.Add(l.limit)), l.limit > 0
}

// Watch waits for the end of the lease, until ctx ends.
func (l *Lease) Watch(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.changed:
		case <-timer.C:
		}
		left, ok := l.left()
		switch {
		case !ok:
			timer.Stop()
		case left > 0:
			timer.Reset(left)
		default:
			l.log.Warn("no server has spoken to this node for its lease: it ends itself", "for", (l.limitNow() - left).Round(time.Second))
			if err := l.end(ctx); err != nil && ctx.Err() == nil {
				l.log.Error("the node does not end", "error", err, "again_in", leaseAgain)
			}
			timer.Reset(leaseAgain)
		}
	}
}

func (l *Lease) limitNow() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.limit
}
