package blob

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"gocloud.dev/gcerrors"

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
	kind := muster.FaultInternal
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return &muster.Fault{Kind: muster.FaultDiskLow, Message: what + ": the disk is full", Err: cause(err)}
	case gcerrors.Code(err) == gcerrors.NotFound, errors.Is(err, os.ErrNotExist):
		return muster.Faultf(muster.FaultNotFound, "%s: not found", what)
	case s.dir != "":
		// A directory has no passing faults.
	case gcerrors.Code(err) == gcerrors.PermissionDenied:
		kind = muster.FaultAuth
	case gcerrors.Code(err) == gcerrors.ResourceExhausted:
		kind = muster.FaultRateLimited
	case gcerrors.Code(err) == gcerrors.Unknown, gcerrors.Code(err) == gcerrors.DeadlineExceeded:
		kind = muster.FaultTransient
	}
	return &muster.Fault{Kind: kind, Message: what, Err: cause(err)}
}

// cause is the operating system's word, if there is one: the driver's layers
// around it say the path again, and more than once.
func cause(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return fmt.Errorf("%s: %w", p.Op, p.Err)
	}
	return err
}
