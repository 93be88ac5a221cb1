package fleet

import (
	"math"

	"github.com/musterhq/muster/internal/decide/size"
	"github.com/musterhq/muster/internal/state"
)

// sizeView is the view of package size, and the feed position up to which it is current. Fleet.mu
// guards it.
type sizeView struct {
	view *size.View
	at   state.Position
}

// to advances the view to a snapshot by the changes since the last call, or builds it if there are
// gaps. Changes of the newest entry may not be in the feed yet. The feed wakes the loop for them,
// and the next call takes them.
func (v *sizeView) to(snap *state.Snapshot, feed *state.Feed) *size.View {
	// An error means that the feed has dropped changes: the view is built from the snapshot.
	changes, last, err := feed.After(v.at, math.MaxInt)
	if v.view == nil || err != nil {
		v.view = size.Build(snap)
	} else {
		v.view.Advance(snap, changes)
	}
	v.at = state.AfterIndex(min(last, snap.Index()))
	return v.view
}
