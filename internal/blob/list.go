package blob

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/musterhq/muster"
)

// deletesAtOnce bounds the requests to a bucket that a DeletePrefix has under way.
const deletesAtOnce = 16

// List is every blob whose key begins with a prefix, sorted by key. A prefix
// ends with a slash.
func (s *Store) List(ctx context.Context, prefix string) ([]Info, error) {
	if err := checkPrefix(prefix); err != nil {
		return nil, err
	}
	var out []Info
	err := s.each(ctx, prefix, func(i Info) error {
		out = append(out, i)
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(out, func(a, b Info) int { return strings.Compare(a.Key, b.Key) })
	return out, nil
}

func checkPrefix(prefix string) error {
	if !strings.HasSuffix(prefix, "/") {
		return muster.Faultf(muster.FaultInvalid, "blob prefix %.60q does not end with a slash", prefix)
	}
	return checkKey(prefix)
}

// each calls fn for every blob under a prefix ("": all), in no order that counts.
func (s *Store) each(ctx context.Context, prefix string, fn func(Info) error) error {
	if err := s.bucket.List(ctx, prefix, fn); err != nil {
		return s.fault(ctx, "blobs under "+prefix, err)
	}
	return nil
}

// DeletePrefix deletes every blob whose key begins with a prefix, which ends
// with a slash. None there is no error. After an error some may be left: do it again.
func (s *Store) DeletePrefix(ctx context.Context, prefix string) error {
	if err := checkPrefix(prefix); err != nil {
		return err
	}
	if s.dir != nil {
		size, err := s.dir.deletePrefix(ctx, prefix)
		if err != nil {
			return s.fault(ctx, "blobs under "+prefix, err)
		}
		s.used.Add(-size)
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	places := make(chan struct{}, deletesAtOnce)
	err := s.each(ctx, prefix, func(i Info) error {
		places <- struct{}{}
		wg.Go(func() {
			if err := s.remove(ctx, i); err != nil {
				cancel(err)
			}
			<-places
		})
		return nil
	})
	wg.Wait()
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// Delete deletes one blob. One that is not there is no error.
func (s *Store) Delete(ctx context.Context, key string) error {
	info, err := s.Stat(ctx, key)
	if muster.IsKind(err, muster.FaultNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return s.remove(ctx, info)
}

// remove deletes one blob; one that is gone already counts as deleted by somebody else.
func (s *Store) remove(ctx context.Context, i Info) error {
	err := s.bucket.Delete(ctx, i.Key)
	if err == nil {
		s.used.Add(-i.Size)
		return nil
	}
	if err := s.fault(ctx, "blob "+i.Key, err); !muster.IsKind(err, muster.FaultNotFound) {
		return err
	}
	return nil
}

// Usage is how many bytes are stored, as far as this process knows: what the
// last Count found and what was put and deleted since.
func (s *Store) Usage() int64 { return max(s.used.Load(), 0) }

// Count looks at the whole store to set Usage right, and takes away files that
// a killed process had not finished. What is put while it looks may be counted
// twice until the next time. Run it in the background after the start, and once in a while.
func (s *Store) Count(ctx context.Context) error {
	atStart := s.used.Load()
	var sum int64
	if err := s.each(ctx, "", func(i Info) error { sum += i.Size; return nil }); err != nil {
		return fmt.Errorf("count blobs: %w", err)
	}
	s.used.Add(sum - atStart)
	if s.dir == nil {
		return nil
	}
	stranded, err := s.dir.removeStranded(ctx)
	if err != nil {
		return fmt.Errorf("count blobs: %w", s.fault(ctx, "unfinished blobs", err))
	}
	if stranded > 0 {
		s.logger.Info("removed unfinished blobs of an earlier run", "count", stranded)
	}
	return nil
}
