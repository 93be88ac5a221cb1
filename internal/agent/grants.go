package agent

import (
	"context"
	"sync"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/wait"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

const (
	// grantTimeout is how long the server may take to say how an image is pulled.
	grantTimeout = 30 * time.Second
	// grantUsual is how long a grant is used that does not say when it ends.
	grantUsual = time.Minute
)

// grants are the rights to pull images that the agent has asked the server for. The server keeps
// its credentials to itself: a node asks for each image, and gets what opens that one for a while.
// The store of images uses the grant for that long. If the store asks again before, a registry has
// refused the grant, so none is kept here.
type grants struct {
	added func() // tells readers that something is asked for

	mu    sync.Mutex
	asked map[string]*ask // by what is needed, as wire.GrantNeed names it
}

// ask is a reference whose grant somebody waits for.
type ask struct {
	waiters  int
	answered chan struct{} // closed with grant set
	grant    wire.PullGrant
}

func newGrants(added func()) *grants {
	return &grants{added: added, asked: map[string]*ask{}}
}

// get asks the server for the grant that is needed, and waits for the answer. Its errors are
// *muster.Failure.
func (g *grants) get(ctx context.Context, need string) (wire.PullGrant, error) {
	g.mu.Lock()
	w, first := g.asked[need], false
	if w == nil {
		w, first = &ask{answered: make(chan struct{})}, true
		g.asked[need] = w
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
	if w.waiters--; w.waiters == 0 && g.asked[need] == w {
		delete(g.asked, need)
	}
	if ref, _ := wire.CutNeed(need); !wait.Closed(w.answered) {
		return wire.PullGrant{}, contract.Failure(muster.FailureOutside, muster.ReasonImage, "image %s: the server has not said within %s how it is pulled", ref, grantTimeout)
	}
	if w.grant.Failure != nil {
		f := *w.grant.Failure
		return wire.PullGrant{}, &f
	}
	return w.grant, nil
}

// put takes in the answer of the server. It does nothing if nobody waits for it.
func (g *grants) put(grant wire.PullGrant) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if grant.Failure == nil && grant.Until == 0 {
		grant.Until = muster.At(time.Now().Add(grantUsual))
	}
	need := wire.GrantNeed(grant.Ref, grant.Namespace)
	if w := g.asked[need]; w != nil {
		w.grant = grant
		delete(g.asked, need)
		close(w.answered)
	}
}

// needs are the grants that the server has to answer, in no order. Reports carry them.
func (g *grants) needs() (all []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for need := range g.asked {
		all = append(all, need)
	}
	return all
}
