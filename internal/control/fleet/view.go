package fleet

import (
	"math"

	"github.com/musterhq/muster/internal/decide/size"
	"github.com/musterhq/muster/internal/state"
)

// sizeView is the view of package size, and the position in the feed that it was advanced to.
type sizeView struct {
	view *size.View
	at   state.Position
}

// to brings the view to a snapshot by the changes since the last one. Those of the
// newest entry may not be in the feed yet: they are when the feed wakes the loop for them, and are taken in then.
func (v *sizeView) to(snap *state.Snapshot, feed *state.Feed) *size.View {
	changes, last, err := feed.After(v.at, math.MaxInt)
	if v.view == nil || err != nil {
		v.view = size.Build(snap)
	} else {
		v.view.Advance(snap, changes)
	}
	v.at = state.AfterIndex(min(last, snap.Index()))
	return v.view
}
