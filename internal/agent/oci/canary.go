package oci

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/initbox"
)

// canaryHolds is for how long it is believed that this node can start what is known to be good.
const canaryHolds = 30 * time.Second

// canary tells whether this node can start a sandbox of which nothing is asked: what the content of an image does to a runtime
// program must not be counted against the node, or one bad image takes one node after the other out of service.
type canary struct {
	mu    sync.Mutex
	lived time.Time     // when one was last started
	flies chan struct{} // one is under way; closed when it is back
	err   error         // what came of the last one
}

// alive starts a canary, or waits for the one that is being started, unless one has lived a moment ago.
func (c *canary) alive(start func() error) error {
	c.mu.Lock()
	if time.Since(c.lived) < canaryHolds {
		c.mu.Unlock()
		return nil
	}
	if back := c.flies; back != nil {
		c.mu.Unlock()
		<-back
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.err
	}
	back := make(chan struct{})
	c.flies = back
	c.mu.Unlock()
	err := start()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err = err; err == nil {
		c.lived = time.Now()
	}
	c.flies = nil
	close(back)
	return err
}

// programError is that a runtime program could not make a container.
type programError struct{ err error }

func (e *programError) Error() string { return e.err.Error() }
func (e *programError) Unwrap() error { return e.err }

// blame says whose failure it is that a container could not be made: the image's, if the program has refused it and makes one without an
// image at the same time. What takes too long is neither's for certain: it is tried again later, and counted against nobody.
func (s *stage) blame(ctx context.Context, err error) error {
	var refused *programError
	var known *muster.Failure
	if s.canary || !errors.As(err, &refused) || errors.As(err, &known) {
		return err
	}
	if s.r.canary.alive(func() error { return s.r.attempt(context.WithoutCancel(ctx)) }) != nil {
		return err // the node's: what is known to be good fails there too
	}
	if d := s.c.Container.Devices; d != nil && s.r.attemptWith(context.WithoutCancel(ctx), d) != nil {
		return initbox.NodeFault("devices: no container can be made with them (%v); one without starts on this node", err)
	}
	text := fmt.Sprintf("image %s: no container can be made of it (%v); one without an image starts on this node", s.c.Container.Image.Ref, err)
	if ctx.Err() != nil {
		return &muster.Failure{Class: muster.FailureOutside, Reason: muster.ReasonImage, Message: text}
	}
	return initbox.UserFault(muster.ReasonImage, "%s", text)
}
