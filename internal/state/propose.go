package state

import (
	"context"
	"fmt"
)

// Proposer commits facts. It returns when the fact is applied here, with its index in the log and the value of apply.
// The error is the state's refusal, or a fault (disk-low, unavailable, ambiguous) after which the fact may be committed all
// the same. It may be called from any goroutine.
type Proposer interface {
	Propose(ctx context.Context, f Fact) (index uint64, value any, err error)
}

// Yields is a fact whose apply answers with a T.
type Yields[T any] interface {
	Fact
	yields(T)
}

func (*AllocsPurged) yields(int)                  {}
func (*ClaimExtended) yields(*Claim)              {}
func (*ConfigApplied) yields(*AppliedConfig)      {}
func (*EnvironmentSet) yields(*EnvironmentChange) {}
func (*ImageRemoved) yields(*LoadedImage)         {}
func (*JobRetried) yields(*Retried)               {}
func (*JobStopped) yields(*Job)                   {}
func (*JobSubmitted) yields(*Submitted)           {}
func (*PlanCommitted) yields(*PlanResult)         {}
func (*RunnerClaimed) yields(*Claimed)            {}

// Propose commits a fact and answers with what its apply made of it.
func Propose[T any](ctx context.Context, p Proposer, f Yields[T]) (index uint64, value T, err error) {
	index, v, err := p.Propose(ctx, f)
	if err != nil {
		return index, value, err
	}
	value, ok := v.(T)
	if !ok {
		return index, value, fmt.Errorf("%T was committed, and the log answered %T instead of %T", f, v, value)
	}
	return index, value, nil
}
