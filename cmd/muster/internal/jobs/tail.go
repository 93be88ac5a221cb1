package jobs

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
)

// tail is how much of the end of a stream is printed: so many lines, or bytes if lines is below 0.
type tail struct {
	lines int
	bytes int64
}

// readTail reads a number of lines, as other programs take it, or a size with a unit. "all" is no
// limit.
func readTail(text string) (*tail, error) {
	if text == "all" {
		return nil, nil
	}
	if n, err := strconv.Atoi(text); err == nil {
		if n < 0 {
			return nil, fmt.Errorf("%q is negative; write a number of lines, or a size as 64KiB", text)
		}
		return &tail{lines: n}, nil
	}
	size, err := api.ParseSize(text)
	if err != nil {
		return nil, fmt.Errorf("%q is neither a number of lines nor a size; write 10 for lines, or a size as 64KiB", text)
	}
	// A server takes 0 as no limit.
	if size == 0 {
		return &tail{}, nil
	}
	return &tail{lines: -1, bytes: int64(size)}, nil
}

// The end of a stream is read in a first piece, which is enlarged until it has the lines. Lines that
// need more than the last one are cut at their beginning.
const (
	firstTail = 64 << 10
	mostTail  = 64 << 20
)

// begin makes a query begin where the tail does. The server counts bytes only, so lines are counted
// here: a piece of the end is read, and a larger one if it has too few of them.
func (t *tail) begin(ctx context.Context, cl *client.Client, q client.OutputQuery) (client.OutputQuery, error) {
	switch {
	case t == nil:
		return q, nil
	case t.lines < 0:
		q.Tail = t.bytes
		return q, nil
	}
	for size := int64(firstTail); ; size *= 8 {
		piece := q
		piece.Tail, piece.Follow = size, false
		start, b, err := readOutput(ctx, cl, piece)
		if err != nil {
			return q, err
		}
		at := lastLines(b, t.lines)
		if at > 0 || t.lines == 0 || int64(len(b)) < size || size >= mostTail {
			q.Offset = start + int64(at)
			return q, nil
		}
	}
}

// readOutput reads what there is of a stream, and where it begins in all that was ever printed.
func readOutput(ctx context.Context, cl *client.Client, q client.OutputQuery) (start int64, b []byte, err error) {
	o, err := cl.Output(ctx, q)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = o.Close() }()
	start = o.Offset()
	// More may have been printed since the server counted; it is read with the lines themselves.
	b, err = io.ReadAll(io.LimitReader(o, q.Tail))
	return start, b, err
}

// lastLines is where the last n lines begin: 0 if b has no more. What is printed after the last line
// break is a line.
func lastLines(b []byte, n int) int {
	if n == 0 {
		return len(b)
	}
	at := len(b)
	if at > 0 && b[at-1] == '\n' {
		at--
	}
	for ; n > 0; n-- {
		if at = bytes.LastIndexByte(b[:at], '\n'); at < 0 {
			return 0
		}
	}
	return at + 1
}
