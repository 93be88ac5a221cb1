package link

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/control/link/linktest"
	"github.com/musterhq/muster/internal/state"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// cachedImages are grants and a cache: each reference is an image whose parts are texts.
type cachedImages struct {
	mu     sync.Mutex
	parts  map[string][]string
	fails  int // how many opens fail from now on
	opened map[string]int
}

func digestOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256:" + hex.EncodeToString(sum[:])
}

func (c *cachedImages) Grant(_ context.Context, ref string, _ muster.Namespace) (wire.PullGrant, bool) {
	return wire.PullGrant{Digest: digestOf(ref)}, !strings.HasPrefix(ref, "direct")
}

func (c *cachedImages) Part(ref, image, digest string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if image != digestOf(ref) {
		return false
	}
	for _, text := range c.parts[ref] {
		if digestOf(text) == digest {
			return true
		}
	}
	return false
}

func (c *cachedImages) Open(_ context.Context, ref string, _ muster.Namespace, _, digest string) (io.ReadCloser, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.opened[digest]++
	if c.fails--; c.fails >= 0 {
		return nil, errors.New("the registry does not answer")
	}
	for _, text := range c.parts[ref] {
		if digestOf(text) == digest {
			return io.NopCloser(strings.NewReader(text)), nil
		}
	}
	return nil, errors.New("not here")
}

// A node gets the parts of an image of the cache once it was granted the image, as long as it has a
// use for it, and of no other image. A push that failed is made again. What the cache does not serve
// is granted as without it.
func TestPartsOfCachedImages(t *testing.T) {
	inBubble(t, func(r *rig) {
		c := &cachedImages{parts: map[string][]string{"own": {"own layer"}, "other": {"other layer"}, "late": {"late layer"}}, opened: map[string]int{}, fails: 1}
		g := &slowGrants{asked: map[string]int{}}
		r.config.Grants, r.config.ImageCache = g, c
		own, other, late := digestOf("own layer"), digestOf("other layer"), digestOf("late layer")
		n := r.boot("n1", 4, func(cfg *linktest.Config) {
			cfg.LieReport = func(rep *wire.Report) { rep.Needs = append(rep.Needs, own, other, late) }
		})
		r.start()
		r.until("serving", time.Minute, serving("n1"))
		r.use("n1", "own", "late", "direct")
		time.Sleep(30 * time.Second)
		if n.HasInput(own) {
			t.Error("it got a part of an image that it was not granted")
		}
		n.NeedGrants("own", "other")
		time.Sleep(time.Minute)
		if !n.HasInput(own) || n.HasInput(other) || n.HasInput(late) || c.opened[own] < 2 || c.opened[other] != 0 {
			t.Errorf("own %v, other %v, late %v, opened %v", n.HasInput(own), n.HasInput(other), n.HasInput(late), c.opened)
		}
		// A node that asks whether the server still sends has had nothing refused.
		n.NeedGrants("own", "direct")
		time.Sleep(time.Minute)
		given := map[string]wire.PullGrant{}
		for _, one := range n.Grants() {
			given[one.Ref] = one
		}
		if given["own"].Digest == "" || given["own"].Authorization != "" || given["direct"].Digest != "" || given["direct"].Authorization != "Bearer direct" || len(g.asked) != 1 || len(g.refused) != 0 {
			t.Errorf("%+v, asked %v, refused %v", given, g.asked, g.refused)
		}
		// What has ended gives no right to what it was granted.
		n.NeedGrants("late")
		nl := r.link.node("n1")
		time.Sleep(30 * time.Second)
		if nl.cached(late) == nil {
			t.Fatal("late is not granted")
		}
		var ids []muster.AllocID
		r.log.Latest().NodeAllocs("n1", func(a *state.Alloc) bool { ids = append(ids, a.ID); return true })
		for _, id := range ids {
			r.must(&state.AllocsReported{Node: "n1", Allocs: []state.AllocUpdate{{ID: id, Status: muster.AllocEnded, Outcome: muster.OutcomeSucceeded}}})
		}
		if nl.cached(late) != nil {
			t.Error("it is sent for an allocation that has ended")
		}
	})
}

// An agent that does not take images from the server is granted what it needs to pull them.
func TestAgentThatTakesNoImages(t *testing.T) {
	inBubble(t, func(r *rig) {
		c := &cachedImages{opened: map[string]int{}}
		r.config.Grants, r.config.ImageCache = &slowGrants{asked: map[string]int{}}, c
		n := r.boot("n1", 4, func(cfg *linktest.Config) {
			cfg.LieHello = func(h *wire.Hello) { h.TakesImages = false }
		})
		r.start()
		r.until("serving", time.Minute, serving("n1"))
		r.use("n1", "own")
		n.NeedGrants("own")
		time.Sleep(time.Minute)
		if all := n.Grants(); len(all) == 0 || all[0].Digest != "" || all[0].Authorization != "Bearer own" {
			t.Errorf("%+v", all)
		}
	})
}
