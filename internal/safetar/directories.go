package safetar

import (
	"slices"
	"strings"
	"time"
)

// maxKept bounds what is remembered of directories. Beyond it, the older half is set early.
const maxKept = 4 << 20

// Directories remembers what directories of a tar get last: their modes may forbid to write into
// them, and what is put into them changes their times.
type Directories struct {
	// Set gives a directory its mode and time.
	Set func(name string, mode uint32, modified time.Time) error

	kept []directory
	// size is about how many bytes kept has.
	size int
	// err is the first error of Set.
	err error
}

// directory is what one directory gets.
type directory struct {
	name     string
	mode     uint32
	modified time.Time
}

// cost is about how many bytes it takes to remember it.
func (d directory) cost() int { return len(d.name) + 128 }

// Add remembers a directory, by a name that its caller knows it by.
func (d *Directories) Add(name string, e *Entry) {
	one := directory{name, uint32(e.Mode & 0o7777), e.ModTime}
	d.kept = append(d.kept, one)
	if d.size += one.cost(); d.size > maxKept {
		d.set((len(d.kept) + 1) / 2)
	}
}

// Finish sets all directories that were not set yet. The error is the first one of Set; the others
// are set nevertheless.
func (d *Directories) Finish() error {
	d.set(len(d.kept))
	return d.err
}

// set sets the first n directories, inner ones first. Of two of one name the later one counts.
func (d *Directories) set(n int) {
	now := d.kept[:n]
	slices.SortStableFunc(now, func(a, b directory) int { return strings.Compare(b.name, a.name) })
	for _, one := range now {
		d.size -= one.cost()
		if err := d.Set(one.name, one.mode, one.modified); d.err == nil {
			d.err = err
		}
	}
	d.kept = append(d.kept[:0], d.kept[n:]...)
}
