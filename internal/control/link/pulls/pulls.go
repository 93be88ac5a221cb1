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

// Cached is an image of the server's cache: what Ref meant when it was granted.
type Cached struct{ Ref, Digest string }

// Book is the record of one node. Its methods may be called concurrently.
type Book struct {
	mu sync.Mutex
	// asked counts the pulls that operators asked for, by image.
	asked map[string]int
	// grants are the last, by reference. cached has when an image of the cache was granted last.
	grants map[string]wire.PullGrant
	cached map[Cached]muster.Time
}

// New makes an empty record.
func New() *Book {
	return &Book{asked: map[string]int{}, grants: map[string]wire.PullGrant{}, cached: map[Cached]muster.Time{}}
}

// Ask records a pull that an operator asked for, until done is called.
func (b *Book) Ask(ref string) (done func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked[ref]++
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.asked[ref]--; b.asked[ref] == 0 {
			delete(b.asked, ref)
		}
	}
}

// Asked are the images that operators have the node pull.
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
	delete(b.grants, g.Ref)
	if g.Digest != "" {
		if len(b.cached) >= maxGrants {
			maps.DeleteFunc(b.cached, func(_ Cached, at muster.Time) bool { return now.Sub(at) > cachedFor })
		}
		if len(b.cached) < maxGrants {
			b.cached[Cached{g.Ref, g.Digest}] = now
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
		b.grants[g.Ref] = g
	}
}

// Authorization is what the node was given last to pull an image from its registry. A node that
// asks for it again has had it refused. It is empty for an image that the server sends.
func (b *Book) Authorization(ref string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.grants[ref].Authorization
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
