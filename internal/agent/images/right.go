package images

import (
	"slices"

	"github.com/musterhq/muster"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// right is that an image of a repository was shown to the credentials of a scope, or to everybody.
// Images in the cache of a node are shared by namespaces that need not have the same credentials: so
// one is used only by those to whom its registry has shown it.
type right struct {
	// Repo is the full name of the repository, or the file that the image is from. It is empty if not
	// all layers of the image have come from there: some were here before.
	Repo  string
	Scope string
}

// maxRights bounds how many rights an image has. Who loses one asks the registry again.
const maxRights = 256

// access is what a pull takes from the cache and gives to it.
type access struct {
	// use is the scope of the puller: what is here for that, or for everybody, it may use.
	use string
	// give is the scope for which it is what the pull fetches, and from the repository or file that it
	// is fetched from.
	give, from string
	// whole: all layers of the image may be used, as it is here.
	whole bool
	// proved: whole, and the repository has just shown the image to the scope of give.
	proved bool
}

// giveLocked adds a right to an image and to its layers, and reports whether the image had it not.
// Store.mu is held.
func (im *image) giveLocked(r right, layers []*layer) bool {
	for _, l := range layers {
		l.giveLocked(r)
	}
	if slices.Contains(im.rights, r) {
		return false
	}
	if len(im.rights) >= maxRights {
		im.rights = slices.Delete(im.rights, 0, 1)
	}
	im.rights = append(im.rights, r)
	return true
}

// giveLocked adds a right to a layer. Store.mu is held.
func (l *layer) giveLocked(r right) {
	l.scopes[r.Scope] = true
	if r.Repo != "" {
		l.repos[r.Repo] = true
	}
}

// earnLocked gives an image the right that a pull has proved. Store.mu is held.
func (im *image) earnLocked(by access, layers []*layer) (gained bool) {
	if by.whole && !by.proved {
		return false // it was for the scope before
	}
	r := right{by.from, by.give}
	for _, l := range layers {
		if by.proved {
			break
		}
		if !l.mayUseLocked(by.give) {
			r.Scope = by.use
		}
		if !l.repos[by.from] {
			r.Repo = ""
		}
	}
	return im.giveLocked(r, layers)
}

// servesLocked reports whether a scope may use the image without a question. Store.mu is held.
func (im *image) servesLocked(scope string) bool {
	return slices.ContainsFunc(im.rights, func(r right) bool { return r.Scope == scope || r.Scope == muster.PublicScope })
}

// fromLocked reports whether all layers of the image were once had from a repository. Store.mu is held.
func (im *image) fromLocked(repo string) bool {
	return slices.ContainsFunc(im.rights, func(r right) bool { return r.Repo == repo })
}

// shown takes an image from the cache that the repository of a pull has just shown to the scope of
// by.give, and reports whether it is here. It is not if its layers must be fetched although they are
// here: that a repository has a manifest is no proof, as somebody may name, in a repository of his
// own, the layers of others. But where they once came from, the manifest stands for them.
func (s *Store) shown(f *found) bool {
	im, ct := s.cached(f.digest)
	if im == nil {
		return false
	}
	s.mu.Lock()
	f.by.proved = im.fromLocked(f.by.from)
	f.by.whole = f.by.proved || im.servesLocked(f.by.use)
	s.mu.Unlock()
	if !f.by.whole {
		s.release(im, nil)
		return false
	}
	f.held, f.content = im, ct
	return true
}

// mayUseLocked reports whether a scope may have a layer: it was fetched with these credentials, or is
// part of an image that is for them, or for everybody. Store.mu is held.
func (l *layer) mayUseLocked(scope string) bool {
	return l.scopes[scope] || l.scopes[muster.PublicScope]
}

// usableLocked is a layer, if a pull may use it; else nil. Store.mu is held.
func (by access) usableLocked(l *layer) *layer {
	if l == nil || !by.whole && !l.mayUseLocked(by.use) {
		return nil
	}
	return l
}

// keyOfPull is the same for pulls that may share what they find.
func keyOfPull(ref string, by wire.Puller) string {
	if by == (wire.Puller{}) {
		return ref
	}
	return ref + " " + string(by.Namespace) + " " + by.Scope
}
