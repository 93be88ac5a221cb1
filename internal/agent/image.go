package agent

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

const (
	// pullTimeout bounds one pull, for each allocation that waits for it.
	pullTimeout = time.Hour
	// detailPace is the least time between two details of one allocation: each is a fact in the log.
	detailPace = 2 * time.Second
	// grantTimeout is how long the server may take to say how an image is pulled.
	grantTimeout = 30 * time.Second
	// grantUsual is how long a grant is used that does not say when it ends.
	grantUsual = time.Minute
)

// errGaveUp is the cause of a context that ended because a pull took too long.
var errGaveUp = errors.New("gave up")

// openImage pulls the image of an allocation. Without a failure and without an
// image the allocation is to stop, or the agent ends.
func (a *Agent) openImage(ctx context.Context, al *alloc) (*contract.Image, *muster.Failure) {
	ref := al.spec.Image
	if a.images == nil {
		return nil, contract.Failure(muster.FailureNode, muster.ReasonNoRuntime, "image %s: this agent has no store of images", ref)
	}
	ctx, cancel := al.untilStop(ctx)
	defer cancel()
	pull, done := context.WithTimeoutCause(ctx, pullTimeout, errGaveUp)
	defer done()
	var told time.Time
	image, err := a.newest(pull, al.spec, func(p contract.ImageProgress) {
		// Called by one at a time, as Open promises.
		if time.Since(told) >= detailPace {
			told = time.Now()
			a.publish(al, func(r *wire.AllocReport) {
				starting(r)
				r.Detail = "pulling image " + ref + ": " + p.String()
			})
		}
	})
	switch {
	case err == nil && ctx.Err() == nil:
		return image, nil
	case err == nil:
		image.Free()
		return nil, nil
	case ctx.Err() != nil:
		return nil, nil
	}
	return nil, contract.AsFailure(err, muster.FailureOutside, muster.ReasonImage, "image "+ref)
}

// newest opens the image of an allocation. Where another version of its job ran here the registry is asked what the tag means
// now, once for each version: who sets something anew means the image of now, and not what was known for some minutes. If
// the registry cannot say, what is known is good enough.
func (a *Agent) newest(ctx context.Context, s *wire.AllocSpec, tell func(contract.ImageProgress)) (*contract.Image, error) {
	const remembered = 4096
	a.mu.Lock()
	before, known := a.versions[s.JobUID]
	if len(a.versions) >= remembered && !known {
		clear(a.versions)
	}
	if a.versions == nil {
		a.versions = map[muster.JobUID]uint64{}
	}
	a.versions[s.JobUID] = max(s.Version, before)
	a.mu.Unlock()
	if known && s.Version > before {
		if image, err := a.images.Pull(ctx, s.Image, tell); err == nil || ctx.Err() != nil {
			return image, err
		}
	}
	return a.images.Open(ctx, s.Image, tell)
}

// grants are the rights to pull that are asked for. The server's credentials stay
// with it: a node asks for each image, and gets what opens that one for a while. The store of images
// uses it for that long; if it asks again before, a registry has refused it, so none is kept here.
type grants struct {
	added func() // tells readers that something is asked for

	mu    sync.Mutex
	asked map[string]*ask
}

// ask is a reference that somebody waits for.
type ask struct {
	waiters  int
	answered chan struct{} // closed with grant set
	grant    wire.Grant
}

func newGrants(added func()) *grants {
	return &grants{added: added, asked: map[string]*ask{}}
}

// get waits until the server has said how ref is pulled.
func (g *grants) get(ctx context.Context, ref string) (wire.Grant, error) {
	g.mu.Lock()
	w, first := g.asked[ref], false
	if w == nil {
		w, first = &ask{answered: make(chan struct{})}, true
		g.asked[ref] = w
	}
	w.waiters++
	g.mu.Unlock()
	if first {
		g.added()
	}
	ctx, cancel := context.WithTimeout(ctx, grantTimeout)
	defer cancel()
	select {
	case <-w.answered:
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if w.waiters--; w.waiters == 0 && g.asked[ref] == w {
		delete(g.asked, ref)
	}
	if !isClosed(w.answered) {
		return wire.Grant{}, contract.Failure(muster.FailureOutside, muster.ReasonImage, "image %s: the server has not said within %s how it is pulled", ref, grantTimeout)
	}
	if w.grant.Failure != nil {
		f := *w.grant.Failure
		return wire.Grant{}, &f
	}
	return w.grant, nil
}

// put takes in what the server said.
func (g *grants) put(grant wire.Grant) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if grant.Failure == nil && grant.Until == 0 {
		grant.Until = muster.At(time.Now().Add(grantUsual))
	}
	if w := g.asked[grant.Ref]; w != nil {
		w.grant = grant
		delete(g.asked, grant.Ref)
		close(w.answered)
	}
}

// needs are the references that are asked for.
func (g *grants) needs() (refs []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for ref := range g.asked {
		refs = append(refs, ref)
	}
	return refs
}
