package images

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster/internal/agent/images/unpack"
)

// S-M7: an image of 1.8 MB with 300,000 empty files took all inodes of a disk: others failed meanwhile. What is left for files counts as room.
func TestRoomIsBoundedByInodes(t *testing.T) {
	st := unix.Statfs_t{Files: 200_000, Ffree: 110_000}
	if got := freeByFiles(&st); got != 100_000*unpack.PerEntry {
		t.Errorf("%d", got)
	}
	st.Ffree = 5_000 // below the floor
	if got := freeByFiles(&st); got >= 0 {
		t.Errorf("%d", got)
	}
	if got := freeByFiles(&unix.Statfs_t{}); got < 1<<50 {
		t.Errorf("a file system without a bound: %d", got)
	}
}

// A file may be larger than the number of free inodes suggests: with 15 million of them left, a file of 8 GiB was refused as if
// the disk were full, on every node, however much room it had.
func TestLargeFileNeedsOneInode(t *testing.T) {
	const piece = unpack.RoomPiece
	st := unix.Statfs_t{Bsize: 4096, Blocks: 64 << 20, Bavail: 16 << 20, Files: 16_000_000, Ffree: 15_000_000} // 64 GiB of 256 are free
	for _, c := range []struct {
		what  string
		n     int64
		ffree uint64
		want  bool
	}{
		{"a file of 8 GiB", 8 << 30, 15_000_000, true},
		{"a file of all that is free, the floor left out", 63 << 30, 15_000_000, true},
		{"a file of more than that", 63<<30 + 1, 15_000_000, false},
		{"a file, when there are few inodes", 8 << 30, 800_000 + piece/unpack.PerEntry - 1, false},
		{"a piece of empty files, when they just fit", piece, 800_000 + piece/unpack.PerEntry, true},
		{"a piece of empty files, when they do not", piece, 800_000 + piece/unpack.PerEntry - 1, false},
	} {
		st.Ffree = c.ffree
		if got := holds(&st, c.n, piece); got != c.want {
			t.Errorf("%s: %v", c.what, got)
		}
	}
}
