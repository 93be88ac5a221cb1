package initwire

import (
	"strconv"
	"strings"
)

// The streams of a sandbox.
const (
	Stdout = "stdout"
	Stderr = "stderr"
)

// Bounds of the output of one stream.
const (
	// MinOutputLimit is the smallest limit that is obeyed: a smaller one counts as this.
	MinOutputLimit = 64 << 10
	maxSegment     = 4 << 20
)

// SegmentSize is how large the segments of a stream with this limit become: an
// eighth of it, so that at least seven eighths of the limit are kept.
func SegmentSize(limit int64) int64 { return min(max(limit, MinOutputLimit)/8, maxSegment) }

// SegmentName is the file name of the segment of a stream that begins at offset.
func SegmentName(stream string, offset int64) string {
	return stream + "." + strconv.FormatInt(offset, 10)
}

// ParseSegmentName is the offset in the name of a segment of the stream.
func ParseSegmentName(stream, name string) (offset int64, ok bool) {
	digits, ok := strings.CutPrefix(name, stream+".")
	if !ok {
		return 0, false
	}
	offset, err := strconv.ParseInt(digits, 10, 64)
	return offset, err == nil && offset >= 0
}
