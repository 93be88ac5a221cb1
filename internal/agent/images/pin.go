package images

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster/internal/agent/images/failure"
	"github.com/musterhq/muster/internal/agent/images/source"
)

// Pin keeps an image that is here, whatever room others need, or ends that. A pinned image counts
// against Config.Limit as the others do, and a tag that means it means it for as long as its registry
// does not answer. The digest is that of Image.
func (s *Store) Pin(digest string, pinned bool) error {
	s.mu.Lock()
	im := s.images[imageKey{digest, s.Shift}]
	if im == nil {
		s.mu.Unlock()
		return failure.NotFound("image %s is not on this node", digest)
	}
	im.record.Pinned = pinned
	record := im.record
	s.mu.Unlock()
	if err := s.writeRecord(s.path(imagesDir, imageName(record)), record); err != nil {
		return failure.Node("image store: %v", err)
	}
	return nil
}

// isPinned reports whether an image is here and pinned.
func isPinned(s *Store, digest string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	im := s.images[imageKey{digest, s.Shift}]
	return im != nil && im.record.Pinned
}

// pinnedLocked are the layers of pinned images that new sandboxes may have. Those that were unpacked
// with another shift are of no use to anybody, pinned or not.
func pinnedLocked(s *Store) map[*layer]bool {
	out := map[*layer]bool{}
	for _, im := range s.images {
		if !im.record.Pinned || im.record.Shift != s.Shift {
			continue
		}
		for _, diff := range im.record.Layers {
			if l := s.current[diff]; l != nil {
				out[l] = true
			}
		}
	}
	return out
}

// Resolve is the image of a list that a reference means; false: it means none. A digest, or its
// beginning after sha256:, is a reference too.
func Resolve(list []Info, ref string) (Info, bool) {
	for _, info := range list {
		if info.Digest == ref || strings.HasPrefix(info.Digest, ref) && len(ref) > len("sha256:") {
			return info, true
		}
		for _, r := range info.Refs {
			if r == ref || r == canonical(ref) {
				return info, true
			}
		}
	}
	return Info{}, false
}

// Reserve takes the cache below parent that the first agent of a host gets, as long as no agent has it:
// images can be brought there before there is an agent. Until free is called no agent starts that has
// its cache below parent.
func Reserve(parent string) (dir string, free func(), err error) {
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return "", nil, err
	}
	lock, err := os.OpenFile(filepath.Join(parent, leaseLock), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", nil, err
	}
	unlock := func() { _ = lock.Close() }
	defer func() {
		if err != nil {
			unlock()
		}
	}()
	switch err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		return "", nil, fmt.Errorf("%s: another command works with it, or an agent starts; try again when that has ended", parent)
	case err != nil:
		return "", nil, fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	dir = filepath.Join(parent, cachesName+"0")
	owner, err := ownerOf(dir)
	if err != nil {
		return "", nil, err
	}
	if exists(owner) {
		return "", nil, fmt.Errorf("%s: it belongs to the agent of %s; take the node out first, and delete %[2]s if no agent uses it", dir, owner)
	}
	return dir, unlock, nil
}

// canonical is the full form of a reference; one that is malformed is itself.
func canonical(ref string) string {
	r, err := source.Parse(ref)
	if err != nil {
		return ref
	}
	return r.Canonical
}
