// Package pulls has what the link needs for the images of nodes: where the right to pull one comes
// from, and a record of what one node pulls: the images that operators have it pull, the
// credentials that it was given last, and the images of the server's cache that it was granted. It
// decides nothing: the link does, and asks whether a use for an image is left. It must never keep
// more than a bounded number of grants, and holds credentials in memory only.
package pulls

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/musterhq/muster"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

const (
	// maxGrants bounds the grants of each kind that are recorded.
	maxGrants = 1024
	// cachedFor is for how long a node may get what an image of the cache is made of after its last
	// grant: the pull of a version may go on when its tag means another one.
	cachedFor = time.Hour
)

// Cached is an image of the server's cache: what Ref meant when it was granted for a namespace.
type Cached struct {
	Ref       string
	Namespace muster.Namespace
	Digest    string
}

// need is how a report asks for the image.
func (c Cached) need() string { return wire.GrantNeed(c.Ref, c.Namespace) }

// Book is the record of one node. Its methods may be called concurrently.
type Book struct {
	mu sync.Mutex
	// asked counts the pulls that operators asked for, by what the node needs for them.
	asked map[string]int
	// grants are the last, by what the node asked for. cached has when an image of the cache was granted last.
	grants map[string]wire.PullGrant
	cached map[Cached]muster.Time
}

// New makes an empty record.
func New() *Book {
	return &Book{asked: map[string]int{}, grants: map[string]wire.PullGrant{}, cached: map[Cached]muster.Time{}}
}

// Ask records a pull that an operator asked for, by what the node needs for it, until done is called.
func (b *Book) Ask(need string) (done func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked[need]++
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.asked[need]--; b.asked[need] == 0 {
			delete(b.asked, need)
		}
	}
}

// Asked are the images that operators have the node pull, as wire.GrantNeed names them.
func (b *Book) Asked() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Collect(maps.Keys(b.asked))
}

// Granted records what the node was given. A full record drops what has expired, and else takes
// nothing more.
func (b *Book) Granted(g wire.PullGrant, now muster.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := Cached{g.Ref, g.Namespace, g.Digest}
	delete(b.grants, c.need())
	if g.Digest != "" {
		if len(b.cached) >= maxGrants {
			maps.DeleteFunc(b.cached, func(_ Cached, at muster.Time) bool { return now.Sub(at) > cachedFor })
		}
		if len(b.cached) < maxGrants {
			b.cached[c] = now
		}
		return
	}
	if g.Authorization == "" {
		return
	}
	if len(b.grants) >= maxGrants {
		maps.DeleteFunc(b.grants, func(_ string, old wire.PullGrant) bool { return old.Until < now })
	}
	if len(b.grants) < maxGrants {
		b.grants[c.need()] = g
	}
}

// Authorization is what the node was given last for what it needs to pull an image from its
// registry. A node that asks for it again has had it refused. It is empty for an image that the
// server sends.
func (b *Book) Authorization(need string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.grants[need].Authorization
}

// Cached are the images of the cache that the node was granted lately.
func (b *Book) Cached(now muster.Time) []Cached {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []Cached
	for c, at := range b.cached {
		if now.Sub(at) <= cachedFor {
			out = append(out, c)
		}
	}
	return out
}
