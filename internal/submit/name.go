package submit

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"strings"
	"time"

	"github.com/musterhq/muster"
)

// nameOf is the name of a job that was submitted without one: always the same for one idempotency
// key.
func nameOf(ns muster.Namespace, key string) string {
	if key == "" {
		return "job-" + random(5)
	}
	sum := sha256.Sum256([]byte(string(ns) + "\x00" + key))
	return "job-" + lowerBase32(sum[:10])
}

// random is text of n random bytes in lower-case letters and digits, eight for each five bytes.
func random(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return lowerBase32(b)
}

// lowerBase32 writes bytes in letters and digits that are good in a name.
func lowerBase32(b []byte) string {
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(b))
}

// newUID draws a uid that begins with the time in milliseconds: rows of jobs that came together lie
// together in the state, and a plan for a thousand of them writes a few pages of each tree instead
// of a thousand (a quarter of the cost of applying it).
func newUID(now time.Time) muster.JobUID {
	var b [10]byte
	_, _ = rand.Read(b[5:]) // never fails
	binary.BigEndian.PutUint64(b[:8], uint64(now.UnixMilli())<<24|uint64(b[5])<<16|uint64(b[6])<<8|uint64(b[7]))
	return muster.JobUID(strings.ToLower(sortedBase32.EncodeToString(b[:])))
}

// sortedBase32 keeps the order of what it encodes, and its letters are as good in a name.
var sortedBase32 = base32.HexEncoding.WithPadding(base32.NoPadding)

// joined is a location below another; locations of lists begin with a bracket.
func joined(above, below string) string {
	if below == "" || strings.HasPrefix(below, "[") {
		return above + below
	}
	return above + "." + below
}
