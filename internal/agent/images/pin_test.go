package images

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/images/layertest"
)

// A pinned image stays, whatever others need and whoever prunes, also for the next process. A layer that
// it shares stays with it.
func TestPinned(t *testing.T) {
	layertest.NeedRoot(t)
	r := newReg(t)
	const one = 1 << 20
	s := newStore(t, func(c *Config) { c.Limit = 2*one + one/2 })
	pinned := r.push(t, "pinned", "1", sized(t, "p", one))
	im := open(t, s, pinned)
	im.Release()
	if err := s.Pin(im.Digest, true); err != nil {
		t.Fatal(err)
	}
	here := func() string {
		var names []string
		for _, info := range s.List() {
			names = append(names, strings.Split(info.Refs[0], "/")[1])
		}
		return strings.Join(names, " ")
	}
	for _, n := range []string{"a", "b", "c"} {
		open(t, s, r.push(t, n, "1", sized(t, n, one))).Release()
		if got := here(); got != n+":1 pinned:1" {
			t.Errorf("with %s: %s", n, got)
		}
	}
	s = again(t, s)
	if i, ok := Resolve(s.List(), pinned); !ok || !i.Pinned || i.Digest != im.Digest {
		t.Errorf("%+v", i)
	}
	if _, err := s.Prune(t.Context(), true); err != nil || here() != "pinned:1" {
		t.Errorf("%v: %s", err, here())
	}
	// Pins take room from others, and an error says so.
	refused(t, s, r.push(t, "two", "1", sized(t, "2", 2*one)), muster.FailureNode, muster.ReasonNodeFull, "pinned")
	if err := s.Pin(im.Digest, false); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Prune(t.Context(), true); err != nil || here() != "" {
		t.Errorf("%v: %s", err, here())
	}
	if err := s.Pin(im.Digest, true); err == nil {
		t.Error("an image that is gone was pinned")
	}
	unused(t, s)
}

// A tag that means a pinned image means it for as long as its registry is away; another tag does so for
// a day.
func TestPinnedWithoutItsRegistry(t *testing.T) {
	layertest.NeedRoot(t)
	r := newReg(t)
	s := newStore(t, nil)
	pinned, other := r.push(t, "pinned", "1", simple(t, "pinned")), r.push(t, "other", "1", simple(t, "other"))
	for _, ref := range []string{pinned, other} {
		im := open(t, s, ref)
		im.Release()
		if ref == pinned {
			if err := s.Pin(im.Digest, true); err != nil {
				t.Fatal(err)
			}
		}
		s.mu.Lock()
		s.refs[ref].At = time.Now().Add(-30 * 24 * time.Hour)
		s.mu.Unlock()
	}
	r.meddle(func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	})
	open(t, s, pinned).Release()
	refused(t, s, other, muster.FailureOutside, muster.ReasonImage)
}

// Images are brought into the cache that the first agent gets, while none has it.
func TestReserve(t *testing.T) {
	parent, agents := filepath.Join(t.TempDir(), "images"), t.TempDir()
	dir, free, err := Reserve(parent)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := Reserve(parent); err == nil || !strings.Contains(err.Error(), "another command works with it") {
		t.Errorf("%v", err)
	}
	free()
	agent := filepath.Join(agents, "n1")
	if err := os.Mkdir(agent, 0o700); err != nil {
		t.Fatal(err)
	}
	if got, err := Lease(parent, agent); err != nil || got != dir {
		t.Errorf("%s, not %s: %v", got, dir, err)
	}
	if _, _, err := Reserve(parent); err == nil || !strings.Contains(err.Error(), "belongs to the agent of "+agent) {
		t.Errorf("%v", err)
	}
	if err := os.Remove(agent); err != nil {
		t.Fatal(err)
	}
	if _, free, err = Reserve(parent); err != nil {
		t.Fatal(err)
	}
	free()
}
