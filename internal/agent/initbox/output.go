package initbox

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster/internal/agent/contract"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// outputLog reads the segments of one stream while init writes and drops them.
// It holds nothing open: each call looks afresh.
type outputLog struct{ dir, stream string }

// maxNames bounds how much of a directory is looked at: the segments of both streams and the spools of executions.
const maxNames = 1 << 16

type segment struct {
	name       string
	start, end int64
}

// segments are those that follow each other without a gap up to the end, oldest first.
func (o *outputLog) segments() ([]segment, error) {
	d, err := os.Open(o.dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // forgotten, or never there
	}
	if err != nil {
		return nil, fmt.Errorf("output: %w", err)
	}
	// What lies there may be a stranger's doing: no more is read than an init that behaves ever makes.
	names, err := d.Readdirnames(maxNames)
	_ = d.Close()
	if err != nil && err != io.EOF {
		return nil, fmt.Errorf("output: %w", err)
	}
	var all []segment
	for _, name := range names {
		start, ok := initwire.ParseSegmentName(o.stream, name)
		if !ok {
			continue
		}
		info, err := os.Lstat(filepath.Join(o.dir, name))
		if errors.Is(err, os.ErrNotExist) {
			continue // dropped just now
		}
		if err != nil {
			return nil, fmt.Errorf("output: %w", err)
		}
		if info.Mode().IsRegular() {
			all = append(all, segment{name: name, start: start, end: start + info.Size()})
		}
	}
	slices.SortFunc(all, func(a, b segment) int { return cmp.Compare(a.start, b.start) })
	first := len(all) - 1
	for first > 0 && all[first-1].end == all[first].start {
		first--
	}
	return all[max(first, 0):], nil
}

func (o *outputLog) Bounds() (start, end int64, err error) {
	all, err := o.segments()
	if err != nil || len(all) == 0 {
		return 0, 0, err
	}
	return all[0].start, all[len(all)-1].end, nil
}

func (o *outputLog) ReadAt(p []byte, offset int64) (int, error) {
	// A segment may be dropped between the look and the read; the second look says so.
	for {
		all, err := o.segments()
		if err != nil {
			return 0, err
		}
		if len(all) == 0 || offset >= all[len(all)-1].end {
			return 0, io.EOF
		}
		if offset < all[0].start {
			return 0, contract.ErrOutputDropped
		}
		i, found := slices.BinarySearchFunc(all, offset, func(s segment, at int64) int { return cmp.Compare(s.start, at) })
		if !found {
			i--
		}
		n, err := o.read(p, offset, all[i:])
		if n == 0 && errors.Is(err, os.ErrNotExist) {
			continue
		}
		if n == 0 && err != nil && err != io.EOF {
			return 0, fmt.Errorf("output: %w", err)
		}
		if n == 0 && len(p) > 0 {
			return 0, io.EOF
		}
		return n, nil
	}
}

// read fills p from as many segments as it takes. What it has counts, whatever comes after.
func (o *outputLog) read(p []byte, offset int64, from []segment) (n int, err error) {
	for _, s := range from {
		if n == len(p) {
			break
		}
		// What lies there is init's doing: never follow it elsewhere, never hang on it.
		f, err := os.OpenFile(filepath.Join(o.dir, s.name), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err != nil {
			return n, err
		}
		at := offset + int64(n) - s.start
		want := p[n:min(int64(len(p)), int64(n)+s.end-s.start-at)]
		m := 0
		if info, serr := f.Stat(); serr != nil || !info.Mode().IsRegular() {
			err = io.ErrUnexpectedEOF
		} else {
			m, err = f.ReadAt(want, at)
		}
		_ = f.Close()
		n += m
		if err != nil {
			return n, err
		}
	}
	return n, nil
}
