package server

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/imagearch"
	"github.com/musterhq/muster/internal/state"
)

// mixedFor is for how long it counts whether the fleet has several architectures: to find out, all nodes
// and offerings are looked at.
const mixedFor = 2 * time.Second

// architectures tells for which architectures an image is. A registry is asked only where it makes a
// difference.
type architectures struct {
	finder *imagearch.Finder
	state  interface{ Latest() *state.Snapshot }

	// mu guards the answer of mixed and when it was found.
	mu    sync.Mutex
	mixed bool
	at    time.Time
}

// openArchitectures makes what finds out the architectures of images.
func (s *Server) openArchitectures() (*architectures, error) {
	finder, err := imagearch.New(imagearch.Config{Grants: s.grants.ForServer(), Logger: s.log})
	if err != nil {
		return nil, err
	}
	return &architectures{finder: finder, state: s.state}, nil
}

// of are the architectures of an image; none: they are not known, or all machines have the same one.
func (a *architectures) of(ctx context.Context, ns muster.Namespace, image string) []string {
	snap := a.state.Latest()
	if !a.severalIn(snap) {
		return nil
	}
	im := state.LoadedImagesOf(snap).Find(image)
	if im == nil {
		return a.finder.Architectures(ctx, ns, image)
	}
	return architecturesOf(im)
}

// architecturesOf are those of a loaded image, sorted; none if one of its platforms does not say.
func architecturesOf(im *state.LoadedImage) []string {
	var out []string
	for _, platform := range im.Platforms {
		parts := strings.Split(platform, "/")
		if len(parts) < 2 || parts[1] == "" {
			return nil
		}
		if !slices.Contains(out, parts[1]) {
			out = append(out, parts[1])
		}
	}
	slices.Sort(out)
	return out
}

// severalIn reports whether nodes and offerings have more than one architecture.
func (a *architectures) severalIn(snap *state.Snapshot) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.at.IsZero() && time.Since(a.at) < mixedFor {
		return a.mixed
	}
	first := ""
	a.mixed, a.at = false, time.Now()
	see := func(attributes map[string]string) bool {
		arch := attributes[muster.AttributeArch]
		switch {
		case arch == "":
		case first == "":
			first = arch
		case arch != first:
			a.mixed = true
		}
		return !a.mixed
	}
	snap.Offerings(func(o *muster.Offering) bool { return see(o.Attributes) })
	if !a.mixed {
		snap.LiveNodes(func(n *state.Node) bool { return see(n.Attributes) })
	}
	return a.mixed
}
