package initwire

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// OwnersArg is the first argument of a muster-init that makes user namespaces; the others are the maps of their ids. It sends a
// packet with a descriptor for each to FDOwners, a socket of packets; a packet without a descriptor is its error.
const (
	OwnersArg = "owners"
	FDOwners  = 3
)

// IDRange maps ids inside a user namespace to those of the node.
type IDRange struct{ Inside, Outside, Size int }

// FormatOwners is the argument for a map: "INSIDE:OUTSIDE:SIZE,...".
func FormatOwners(m []IDRange) string {
	parts := make([]string, len(m))
	for i, r := range m {
		parts[i] = fmt.Sprintf("%d:%d:%d", r.Inside, r.Outside, r.Size)
	}
	return strings.Join(parts, ",")
}

// ParseOwners reads what FormatOwners wrote.
func ParseOwners(text string) (m []IDRange, err error) {
	for part := range strings.SplitSeq(text, ",") {
		var n [3]int
		f := strings.Split(part, ":")
		if len(f) != len(n) {
			return nil, errors.New("a map of ids is INSIDE:OUTSIDE:SIZE, and this is " + strconv.Quote(part))
		}
		for i := range n {
			if n[i], err = strconv.Atoi(f[i]); err != nil {
				return nil, fmt.Errorf("a map of ids: %w", err)
			}
		}
		m = append(m, IDRange{n[0], n[1], n[2]})
	}
	return m, nil
}
