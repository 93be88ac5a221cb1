package cli

import (
	"strings"

	"github.com/musterhq/muster/internal/fields"
)

// cutLast is strings.Cut at the last separator.
func cutLast(s, sep string) (before, after string, ok bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// nearest is the known name that was probably meant; "" if none is near. A name may differ by a
// third of its length, but by three characters at most. A long enough beginning of a name counts as
// near too: other tools shorten ids. It is not fields.Nearest: that one ignores dashes and skips
// letters, and the dashes of an id and the parts of NAMESPACE/JOB mean something.
func nearest(name string, known []string) string {
	best, least := "", max(1, min(3, len(name)/3))+1
	for _, k := range known {
		if len(name) >= 4 && strings.HasPrefix(k, name) && least > 1 {
			best, least = k, 1 // as ids are shortened elsewhere
			continue
		}
		if d := fields.Distance(name, k); d < least {
			best, least = k, d
		}
	}
	return best
}
