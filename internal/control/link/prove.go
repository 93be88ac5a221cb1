package link

import (
	"context"
	"slices"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/health"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/wait"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// The delays between probes whose answers do not say when to ask again.
const probeFirst, probeLongest = time.Second, time.Minute

// clocksAgree is how far the system's clock and the log's may be apart if neither was set.
const clocksAgree = 10 * time.Second

// ask has the node run its readiness check. It ends by the pool's deadline, whatever the node does.
func (n *nodeLink) ask(ctx context.Context) (wire.ProbeAnswer, error) {
	// The node compares its clock with Now. A server whose own clock was set sends none, because it
	// cannot judge the clocks of nodes.
	var p wire.Probe
	if now := n.l.cfg.Clock.Now(); now.Sub(muster.At(time.Now())).Abs() < clocksAgree {
		p.Now = now
	}
	if pool := n.l.cfg.State.Latest().Pool(n.row.Load().Pool); pool != nil {
		p.Command, p.TimeoutMillis = pool.Ready, int64(pool.ReadyTimeout)/1000
	}
	n.l.stats.probes.Add(1)
	got, err := n.client.Probe(ctx, p)
	if err == nil {
		now := n.l.cfg.Clock.Now()
		n.touch(func(c *health.Contact) { c.Heard = now })
	}
	got.Why = muster.Truncate(got.Why, maxMessage)
	return got, err
}

// proveFirst runs the check before a node first enters service. A node that has served before is
// not checked here.
func (n *nodeLink) proveFirst(ctx context.Context) error {
	if row := n.row.Load(); row.Stage != muster.NodeBooting && row.Stage != muster.NodeAdopted {
		return nil
	}
	got, err := n.ask(ctx)
	switch {
	case err != nil:
		return err
	case got.Broken:
		n.touch(func(c *health.Contact) { c.Broken = got.Why })
		return &unready{why: got.Why, again: refusedLongest}
	case !got.Ready:
		return &unready{why: "not ready: " + got.Why, again: time.Duration(got.AgainMillis) * time.Millisecond}
	}
	return nil
}

// prove checks a node that has been unready since the given time, and records the result. Nothing
// waits for it: meanwhile the node keeps its health. n.proving is true while it runs.
func (n *nodeLink) prove(ctx context.Context, since muster.Time) {
	got, err := n.ask(ctx)
	if err != nil {
		got = wire.ProbeAnswer{Why: muster.Truncate("it does not answer when it is probed: "+err.Error(), maxMessage)}
	}
	again := time.Duration(got.AgainMillis) * time.Millisecond
	if again <= 0 {
		n.probeWait = min(max(2*n.probeWait, probeFirst), probeLongest)
		again = n.probeWait
	}
	if got.Ready {
		n.probeWait = 0
	}
	n.proving.Store(false)
	n.touch(func(c *health.Contact) {
		c.Asked, c.NotReady, c.Again = since, "", 0
		switch {
		case got.Ready:
			c.Proved = since
		case got.Broken:
			c.Broken = got.Why
		default:
			c.NotReady, c.Again = "not ready: "+got.Why, n.l.cfg.Clock.Now().Add(again)
		}
	})
	// A result equal to the one before changes nothing that touch would notice. Judge anyway, so
	// that the next probe is planned.
	n.rejudge()
}

// sawImages records which images the node has in its cache, for tell to propose.
func (s *session) sawImages(names []string) {
	f := &state.NodeImagesSeen{ID: s.n.id}
	for _, name := range names[:min(len(names), wire.MaxImages)] {
		if key := muster.ImageKey(muster.Truncate(name, maxImage)); !slices.Contains(f.Images, key) {
			f.Images = append(f.Images, key)
		}
	}
	// Nothing was there and nothing is there: no fact is needed.
	if row := s.n.l.cfg.State.Latest().Node(s.n.id); row != nil && len(f.Images) == 0 && !slices.ContainsFunc(row.Warm, muster.AffinityKey.IsImage) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.images = f
	wait.Poke(s.tellWake)
}

// maxImage bounds the name of an image from an agent, in bytes.
const maxImage = 1024

// tellImages proposes the images, unless they are what was proposed last. An error is only logged:
// they serve locality, and the next report has them again.
func (s *session) tellImages(ctx context.Context) {
	s.mu.Lock()
	f := s.images
	s.images = nil
	s.mu.Unlock()
	if f == nil || slices.Equal(f.Images, s.toldImages) {
		return
	}
	if err := s.n.propose(ctx, f); err != nil && ctx.Err() == nil {
		s.n.log.Warn("images not noted", "error", err)
		return
	}
	s.toldImages = f.Images
}
