package driver

import (
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
)

// Reading follows lists page by page, so that a driver can forget the instances that a whole list has
// not shown. The zero value is ready. Its user guards it.
type Reading struct {
	// began and next are of the list under way: when it began, and the cursor of its next page. ids is
	// nil if none is.
	began time.Time
	next  string
	ids   map[muster.InstanceID]bool
}

// Page takes in a page that was asked for by a cursor; began is when the driver asked. With the last
// page of a whole list it returns gone, otherwise nil: gone reports whether an instance that was seen
// last at some time is missing from the list, which began later.
func (r *Reading) Page(cursor string, began time.Time, page *cloud.Listing) (gone func(id muster.InstanceID, seen time.Time) bool) {
	if cursor == "" {
		*r = Reading{began: began, ids: map[muster.InstanceID]bool{}}
	} else if r.ids == nil || r.next != cursor {
		r.ids = nil // pages of two lists at once: neither is known to be whole
		return nil
	}
	for i := range page.Instances {
		r.ids[page.Instances[i].ID] = true
	}
	r.next = page.Next
	if !page.Complete {
		return nil
	}
	whole := *r
	r.ids = nil
	return func(id muster.InstanceID, seen time.Time) bool { return !whole.ids[id] && seen.Before(whole.began) }
}
