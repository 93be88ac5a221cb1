package link

import (
	"errors"
	"maps"
	"net"
	"net/url"
	"slices"
	"strings"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// A node's words may come from the command itself. The log takes only valid UTF-8 and would refuse
// the same fact again at every retry. So this file makes all text from an agent fit for the log.
// The limits are in bytes, but for maxAttributes, a count.
const (
	maxMessage    = 2000
	maxWord       = 64
	maxDetail     = 200
	maxPath       = 4096
	maxAttributes = 256
)

// away returns in words why an agent was not reached. It leaves out the name of the request and the
// local port of the connection, so that the same cause always has the same words.
func away(err error) string {
	var request *url.Error
	if errors.As(err, &request) {
		err = request.Err
	}
	said := err.Error()
	var op *net.OpError
	if errors.As(err, &op) && op.Source != nil {
		without := *op
		without.Source = nil
		said = strings.Replace(said, op.Error(), without.Error(), 1)
	}
	return muster.Truncate(said, maxMessage)
}

func failureOf(f *muster.Failure) *muster.Failure {
	if f == nil {
		return nil
	}
	out := &muster.Failure{Class: f.Class, Reason: muster.Reason(muster.Truncate(string(f.Reason), maxWord)), Message: muster.Truncate(f.Message, maxMessage)}
	switch f.Class {
	case muster.FailureUser, muster.FailureNode, muster.FailureOutside:
	default:
		out.Class = muster.FailureNode
	}
	return out
}

// outcomeOf returns an outcome that an agent may report. An unknown one means only that the
// allocation ended: it counts as failed.
func outcomeOf(o muster.Outcome) muster.Outcome {
	switch o {
	case "", muster.OutcomeSucceeded, muster.OutcomeFailed, muster.OutcomeStopped, muster.OutcomeLost:
		return o
	}
	return muster.OutcomeFailed
}

// withoutRefused returns an update without the parts that the log may have refused. The allocation ends in
// any case, with the reason in its failure.
func withoutRefused(u state.AllocUpdate, why error) state.AllocUpdate {
	u.Signal, u.Output = "", nil
	if u.Failure != nil {
		u.Failure = &muster.Failure{Class: u.Failure.Class, Reason: muster.ReasonNodeFault,
			Message: muster.Truncate("what its node says of its end cannot be kept: "+why.Error(), maxMessage)}
	}
	return u
}

// cleanHello makes an agent's introduction fit for the log. It takes attributes in the order of
// their keys, so that the same surplus ones are left out each time.
func cleanHello(h wire.Hello) wire.Hello {
	h.Version, h.Run = muster.Truncate(h.Version, 4*maxWord), muster.Truncate(h.Run, 4*maxWord)
	attributes := make(map[string]string, min(len(h.Attributes), maxAttributes))
	for _, k := range slices.Sorted(maps.Keys(h.Attributes)) {
		if len(attributes) == maxAttributes {
			break
		}
		attributes[muster.Truncate(k, 4*maxWord)] = muster.Truncate(h.Attributes[k], maxMessage)
	}
	h.Attributes = attributes
	var problems []string
	for _, p := range h.Problems[:min(len(h.Problems), maxWord)] {
		problems = append(problems, muster.Truncate(p, maxMessage))
	}
	h.Problems = problems
	return h
}
