package blob

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/musterhq/muster"
)

// fault gives what a driver says a kind. Faults, and the end of the context,
// pass as they are.
func (s *Store) fault(ctx context.Context, what string, err error) error {
	var f *muster.Fault
	if errors.As(err, &f) {
		return err
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", what, context.Cause(ctx))
	}
	kind := s.bucket.Kind(err)
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return &muster.Fault{Kind: muster.FaultDiskLow, Message: what + ": the disk is full", Err: cause(err)}
	case kind == muster.FaultNotFound:
		return muster.Faultf(muster.FaultNotFound, "%s: not found", what)
	}
	return &muster.Fault{Kind: kind, Message: what, Err: cause(err)}
}

// cause is the operating system's error, if there is one, without the path, which the message has.
func cause(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return fmt.Errorf("%s: %w", p.Op, p.Err)
	}
	return err
}
