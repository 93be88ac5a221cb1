package check

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/wait"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// run runs the command on the node, through the same messages as any work.
func (c *check) run(ctx context.Context) error {
	began := time.Now()
	client := c.client()
	defer client.Close()
	// The job exists only in this message. Its uid is the node's id, so it collides with no other.
	uid := muster.JobUID(c.node.ID)
	id := muster.NewAllocID(uid, 0, 1)
	line := strings.Join(c.want.Command, " ")
	_, err := client.SendDesired(ctx, wire.Desired{Fence: c.Fence(), Allocs: []wire.DesiredAlloc{{
		ID: id, Desired: muster.AllocRun, Spec: &wire.AllocSpec{
			Namespace: muster.DefaultNamespace, Job: string(c.node.ID), JobUID: uid, Version: 1, Count: 1, Attempt: 1,
			Template:        api.Template{Command: c.want.Command},
			Resources:       muster.Resources{CPU: min(askCPU, c.offering.Capacity.CPU), Memory: min(askMemory, c.offering.Capacity.Memory)},
			KillGraceMillis: 1, OutputLimit: outputLimit,
		},
	}}})
	if err != nil {
		return fmt.Errorf("its agent does not take the command: %w", cause(ctx, err))
	}
	r, err := c.result(ctx, client, id)
	if err != nil {
		return fmt.Errorf("the command %q did not end: %w", line, cause(ctx, err))
	}
	// The output is read before the instance is destroyed.
	stdout, stderr := c.output(ctx, client, r, wire.Stdout), c.output(ctx, client, r, wire.Stderr)
	if r.Outcome != muster.OutcomeSucceeded {
		why := string(r.Outcome)
		if r.Failure != nil {
			why = r.Failure.Message
		}
		if words := strings.TrimSpace(stderr); words != "" {
			why += "; its stderr: " + words
		}
		return muster.Faultf(muster.FaultConflict, "the command %q failed: %s", line, why)
	}
	c.Say(stepRun, fmt.Sprintf("%q succeeded in %s: %s", line, took(began), strings.TrimSpace(stdout)))
	return nil
}

// result waits for the end of the allocation. A stream that breaks is opened again.
func (c *check) result(ctx context.Context, client *wire.Client, id muster.AllocID) (wire.AllocReport, error) {
	for delay := retryFirst; ; delay = min(2*delay, retryLongest) {
		var last error
		// The first report of a stream is a whole one, so an end before that is in it.
		for report, err := range client.Reports(ctx) {
			if last = err; err != nil {
				break
			}
			for _, a := range report.Allocs {
				if a.ID == id && a.Status == muster.AllocEnded {
					return a, nil
				}
			}
		}
		if !wait.For(ctx, delay) {
			return wire.AllocReport{}, last
		}
	}
}

// list waits until the provider's list shows the instance with its tags. Otherwise the fleet could
// neither find an instance again nor destroy one that it does not know.
func (c *check) list(ctx context.Context) error {
	began := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, listFor, muster.Faultf(muster.FaultUnavailable, "it took longer than %s", listFor))
	defer cancel()
	told := ""
	for delay := retryFirst; ; delay = min(2*delay, retryLongest) {
		err := c.shown(ctx)
		if err == nil {
			c.Say(stepList, fmt.Sprintf("its list shows instance %s with its tags, after %s", c.node.Instance, took(began)))
			return nil
		}
		if ctx.Err() == nil && err.Error() != told {
			told = err.Error()
			c.Say(stepList, "not yet: "+told)
		}
		if !wait.For(ctx, delay) {
			return fmt.Errorf("its list does not show what was made, so that nothing would be found again or swept: %w", cause(ctx, err))
		}
	}
}

// shown looks at the list once, and returns what is wrong with it.
func (c *check) shown(ctx context.Context) error {
	all, complete, err := c.everything(ctx)
	if err != nil {
		return fmt.Errorf("its list cannot be read: %w", err)
	}
	for i := range all {
		if in := &all[i]; in.ID == c.node.Instance {
			if in.Tags.Token != c.node.Token || in.Tags.Node != c.node.ID {
				return muster.Faultf(muster.FaultConflict, "its list shows instance %s with token %q and node %q, and it was made with %q and %q",
					in.ID, in.Tags.Token, in.Tags.Node, c.node.Token, c.node.ID)
			}
			return nil
		}
	}
	if !complete {
		return muster.Faultf(muster.FaultTransient, "its list says that it is not complete, and instance %s is not in it", c.node.Instance)
	}
	return muster.Faultf(muster.FaultNotFound, "instance %s is not among the %d of its list", c.node.Instance, len(all))
}

// everything reads all pages of the provider's list. complete is what the provider says of the last
// page.
func (c *check) everything(ctx context.Context) (all []cloud.Instance, complete bool, err error) {
	// maxPages stops a list whose cursor never ends.
	const maxPages = 10_000
	cursor := ""
	for range maxPages {
		page, err := c.Provider.List(ctx, cursor)
		if err != nil {
			return nil, false, err
		}
		all = append(all, page.Instances...)
		if cursor = page.Next; cursor == "" {
			return all, page.Complete, nil
		}
	}
	return nil, false, muster.Faultf(muster.FaultInternal, "its list does not end")
}

// output returns the end of a stream, short enough for a sentence.
func (c *check) output(ctx context.Context, client *wire.Client, r wire.AllocReport, stream string) string {
	s := r.Stdout
	if stream == wire.Stderr {
		s = r.Stderr
	}
	text := s.Inline
	if len(text) == 0 && s.Size > 0 {
		from := max(s.Start, s.Size-outputInWords)
		o, err := client.Stream(ctx, r.ID, stream, from, false)
		if err != nil {
			return fmt.Sprintf("(not read: %v)", err)
		}
		defer func() { _ = o.Close() }()
		// A read error is ignored: what was read is still the command's output.
		text, _ = io.ReadAll(io.LimitReader(o, outputInWords))
	}
	if len(text) > outputInWords {
		text = text[len(text)-outputInWords:]
	}
	return strings.ToValidUTF8(string(text), "?")
}
