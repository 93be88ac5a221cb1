package state

import (
	"slices"
	"strings"

	"github.com/musterhq/muster"
)

// maxWarm bounds the keys that a node remembers.
const maxWarm = 16

// keysOf are the affinity keys of a job's members: what the user names first, then the image.
func keysOf(r *Run) []muster.AffinityKey {
	var keys []muster.AffinityKey
	if k := r.Spec.Affinity; k != "" {
		keys = append(keys, muster.AffinityKey(k))
	}
	if r.Spec.Image != "" {
		keys = append(keys, muster.ImageKey(r.Spec.Image))
	}
	return keys
}

// warmRow is an entry of the index of warmth.
type warmRow struct {
	key  muster.AffinityKey
	node muster.NodeID
}

// WarmNodes iterates by id over the nodes that are not gone and remember the key, whatever their
// dials say. It costs what it yields.
func (s *Snapshot) WarmNodes(key muster.AffinityKey, fn func(muster.NodeID) bool) {
	s.t.warm.Ascend(warmRow{key: key}, func(w warmRow) bool { return w.key == key && fn(w.node) })
}

// WarmCount is how many pairs of key and node the index has.
func (s *Snapshot) WarmCount() int { return s.t.warm.Len() }

// WarmFor is how many of the keys the node remembers.
func (n *Node) WarmFor(keys []muster.AffinityKey) int {
	warm := 0
	for _, k := range keys {
		if slices.Contains(n.Warm, k) {
			warm++
		}
	}
	return warm
}

// Worth is what a node's warmth is worth to others who might come for it: 0 if it is fresh, else
// when it was last given work with a key. Among nodes that are not warm for a
// member the one with the smallest is given it: a fresh one, then the one whose keys nobody has come for the longest.
func (n *Node) Worth() muster.Time {
	if len(n.Warm) == 0 {
		return 0
	}
	return max(n.WarmAt, 1)
}

// serve notes that the node is given work of these keys: they come first, the longest unused fall out.
func (n *Node) serve(keys []muster.AffinityKey, now muster.Time) {
	if len(keys) == 0 {
		return
	}
	n.WarmAt = now
	if len(n.Warm) >= len(keys) && slices.Equal(n.Warm[:len(keys)], keys) {
		return // as before: no row needs a slice of its own
	}
	warm := make([]muster.AffinityKey, len(keys), min(len(keys)+len(n.Warm), maxWarm+len(keys)))
	copy(warm, keys)
	for _, k := range n.Warm {
		if !slices.Contains(keys, k) {
			warm = append(warm, k)
		}
	}
	n.Warm = slices.Clip(warm[:min(len(warm), maxWarm)])
}

// NodeImagesSeen says which images a node's agent has at hand.
func (f *NodeImagesSeen) apply(s *State, _ muster.Time) (any, error) {
	n, err := s.node(f.ID)
	if err != nil {
		return nil, err
	}
	if !n.Stage.Live() {
		return nil, nil
	}
	if warm := s.t.corrected(n, f.Images); !slices.Equal(warm, n.Warm) {
		b := *n
		b.Warm = warm
		s.putNode(n, &b, VerbNodeImages)
	}
	return nil, nil
}

// corrected is what a node remembers once its agent has said which images it has. One that is gone is
// forgotten, unless work that wants it is there: then it is about to be pulled. One that it has and was not known is
// remembered last.
func (t *tables) corrected(n *Node, has []muster.AffinityKey) []muster.AffinityKey {
	wanted := map[muster.AffinityKey]bool{}
	t.nodeAllocs.Ascend(&Alloc{Node: n.ID}, func(a *Alloc) bool {
		if a.Node == n.ID {
			for _, k := range a.Run.Keys {
				wanted[k] = true
			}
		}
		return a.Node == n.ID
	})
	var warm []muster.AffinityKey
	for _, k := range n.Warm {
		if !k.IsImage() || wanted[k] || slices.Contains(has, k) {
			warm = append(warm, k)
		}
	}
	for _, k := range has {
		if len(warm) < maxWarm && k.IsImage() && !slices.Contains(warm, k) {
			warm = append(warm, k)
		}
	}
	return slices.Clip(warm)
}

// indexWarmth keeps the index of warmth right when a node's row changes.
func (t *tables) indexWarmth(before, after *Node) {
	var had, has []muster.AffinityKey
	if before != nil && before.Stage.Live() {
		had = before.Warm
	}
	if after.Stage.Live() {
		has = after.Warm
	}
	if len(had) == len(has) && (len(had) == 0 || &had[0] == &has[0]) {
		return // the same slice: rows never change
	}
	for _, k := range had {
		if !slices.Contains(has, k) {
			t.warm.Delete(warmRow{k, after.ID})
		}
	}
	for _, k := range has {
		if !slices.Contains(had, k) {
			t.warm.Set(warmRow{k, after.ID})
		}
	}
}

func compareWarm(a, b warmRow) int {
	if c := strings.Compare(string(a.key), string(b.key)); c != 0 {
		return c
	}
	return strings.Compare(string(a.node), string(b.node))
}
