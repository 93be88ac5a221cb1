package raftlog

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster"
)

// DiskUsage is the state of the file system under the data directory, in bytes.
type DiskUsage struct {
	Free  uint64 // for this process
	Total uint64
	Mark  uint64 // below this, users' writes are refused
}

// Low: users' writes are refused, but for those that free something.
func (u DiskUsage) Low() bool { return u.Free < u.Mark }

// Full: these are refused as well. What is left is for the server's own facts.
func (u DiskUsage) Full() bool { return u.Free < u.Mark/8 }

// Tight: what only fills the disk (shipped output) stops, before writes must.
func (u DiskUsage) Tight() bool { return u.Free < u.TightMark() }

// TightMark is how many bytes must be free for that not to stop.
func (u DiskUsage) TightMark() uint64 { return u.Mark + u.Mark/2 }

// defaultLowWater is 5 % of the disk, but not less than 1 GiB and not more than 4 GiB: what the server writes
// between two looks at the disk, and what it needs to go on, does not grow with the disk.
func defaultLowWater(total uint64) uint64 { return min(max(1<<30, total/20), 4<<30) }

// diskFresh is how long one look at the disk is good for. At a gigabyte per
// second that is an eighth of the smallest default mark.
const diskFresh = 125 * time.Millisecond

// disk looks at the free space, not more often than needed.
type disk struct {
	dir  string
	mark func(total uint64) uint64

	mu    sync.Mutex
	seen  time.Time
	usage DiskUsage
	err   error
}

func (d *disk) look() (DiskUsage, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if now := time.Now(); d.seen.IsZero() || now.Sub(d.seen) >= diskFresh {
		d.seen = now
		d.usage, d.err = d.statfs()
	}
	return d.usage, d.err
}

func (d *disk) statfs() (DiskUsage, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(d.dir, &st); err != nil {
		return DiskUsage{}, fmt.Errorf("free space of %s: %w", d.dir, err)
	}
	size := uint64(st.Bsize)
	u := DiskUsage{Free: uint64(st.Bavail) * size, Total: uint64(st.Blocks) * size}
	u.Mark = d.mark(u.Total)
	return u, nil
}

// refuse is the error for a user's write, or nil; frees: for one that frees something. A disk that does not say how
// much is free is not trusted with more.
func (d *disk) refuse(frees bool) error {
	u, err := d.look()
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrDiskLow, err)
	case frees && u.Full():
		return fmt.Errorf("%w: %s has only %s free: free space on its file system", ErrDiskLow, d.dir, muster.Bytes(u.Free))
	case !frees && u.Low():
		return fmt.Errorf("%w: %s has %s free, and new work needs %s (low_water): free space on its file system; stopping, releasing and deleting still work",
			ErrDiskLow, d.dir, muster.Bytes(u.Free), muster.Bytes(u.Mark))
	}
	return nil
}

// Disk is the free space, at most an eighth of a second old.
func (l *Log) Disk() (DiskUsage, error) { return l.disk.look() }

// DiskLow says whether users' writes are refused.
func (l *Log) DiskLow() bool {
	u, err := l.disk.look()
	return err != nil || u.Low()
}
