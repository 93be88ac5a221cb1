package raftlog

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
	"pgregory.net/rapid"
)

// fiveEntries is the tail of a log of five confirmed entries.
func fiveEntries(t *testing.T) (dir, name string, b []byte) {
	t.Helper()
	dir = t.TempDir()
	s := openTestStore(t, dir)
	for i := uint64(1); i <= 5; i++ {
		if err := s.StoreLog(logAt(i, 40)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	name = tailFile(t, dir)
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return dir, name, b
}

// Where a frame's head rots, what is behind it is not dropped.
func TestRottenFrames(t *testing.T) {
	dir, name, good := fiveEntries(t)
	ends := commits(t, good)
	for _, c := range []struct {
		name string
		rot  func(b []byte)
		says string
	}{
		{"kind of entry 3", func(b []byte) { b[ends[1]] ^= 1 << 6 }, fmt.Sprintf("from byte %d on", ends[1])},
		{"kind of entry 3 gone", func(b []byte) { b[ends[1]] ^= frameEntry }, fmt.Sprintf("from byte %d on", ends[1])},
		{"length of entry 3", func(b []byte) { b[ends[1]+7] ^= 1 << 7 }, fmt.Sprintf("from byte %d on", ends[1])},
		{"length of entry 3 beyond the file", func(b []byte) { b[ends[1]+6] ^= 1 }, fmt.Sprintf("follow at byte %d", ends[2])},
		{"entry 3 is zero", func(b []byte) { clear(b[ends[1]:ends[2]]) }, fmt.Sprintf("follow at byte %d", ends[2])},
		{"entries 3 and 4 are zero", func(b []byte) { clear(b[ends[1]:ends[3]]) }, fmt.Sprintf("follow at byte %d", ends[3])},
		{"all before entry 5 is zero", func(b []byte) { clear(b[:ends[3]]) }, "from byte 0 on"},
		{"commit of entry 4", func(b []byte) { b[ends[3]-frameHead] ^= 1 << 2 }, fmt.Sprintf("from byte %d on", ends[2])},
		{"a sector's worth of entry 5", func(b []byte) { copy(b[ends[3]+frameHead+8:], "not what was there") }, fmt.Sprintf("from byte %d on", ends[3])},
		{"kind of the last commit", func(b []byte) { b[ends[4]-frameHead] ^= frameCommit ^ frameIndex }, fmt.Sprintf("from byte %d on", ends[3])},
	} {
		bad := bytes.Clone(good)
		c.rot(bad)
		if err := os.WriteFile(name, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := openStore(dir, 8<<10, 4, newLatch(dir, nil, nil), &hcLogger{to: discard})
		if err == nil {
			last, _ := s.LastIndex()
			t.Errorf("%s: opened with last index %d", c.name, last)
			_ = s.close()
			continue
		}
		if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), filepath.Base(name)) ||
			!strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", c.name, err)
		}
		if b, err := os.ReadFile(name); err != nil || !bytes.Equal(b, bad) {
			t.Errorf("%s: the file was changed (%v)", c.name, err)
		}
	}
}

// A torn append is the last thing there is, and not larger than appends are.
func TestMoreThanOneAppend(t *testing.T) {
	_, name, b := fiveEntries(t)
	end := commits(t, b)[4]
	copy(b[end+frameHead:], bytes.Repeat([]byte("torn"), 200)) // its first piece is missing
	for largest, want := range map[int64]error{700: ErrDamaged, 900: nil} {
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := scanFile(t, name, largest)
		if !errors.Is(err, want) || got.entries != 5 || err == nil && !got.torn {
			t.Errorf("with appends of at most %d bytes: %+v, %v", largest, got, err)
		}
	}
	if n := largestAppend(1); n < MaxProposal || n > MaxProposal+1<<20 {
		t.Errorf("largest append: %d", n)
	}
}

func scanFile(t testing.TB, name string, largest int64) (tailEnd, error) {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return scanTail(f, largest)
}

// logOf writes a log of appends of so many entries each, and gives the last index.
func logOf(t rapid.TB, dir string, size int, appends []int) (last uint64) {
	s, err := openStore(dir, 8<<10, 4, newLatch(dir, nil, nil), &hcLogger{to: discard})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range appends {
		var logs []*raft.Log
		for range n {
			last++
			logs = append(logs, logAt(last, size))
		}
		if err := s.StoreLogs(logs); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	return last
}

// One wrong bit, wherever in the tail, the last append included: either every
// entry is still there, or the log is refused and left as it is.
func TestEveryBit(t *testing.T) {
	for _, c := range []struct {
		name string
		make func(t *testing.T, dir string)
		one  int // in about so many bits is tried
	}{
		{"five", func(t *testing.T, dir string) { logOf(t, dir, 40, []int{1, 1, 1, 1, 1}) }, 5},
		{"one", func(t *testing.T, dir string) { logOf(t, dir, 40, []int{1}) }, 3},
		{"several at once", func(t *testing.T, dir string) { logOf(t, dir, 90, []int{1, 4, 3}) }, 11},
		{"zeros", func(t *testing.T, dir string) {
			s := openTestStore(t, dir)
			for i := uint64(1); i <= 3; i++ {
				if err := s.StoreLog(&raft.Log{Index: i, Term: 1, Data: make([]byte, 700)}); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.close(); err != nil {
				t.Fatal(err)
			}
		}, 23},
		{"sealed", func(t *testing.T, dir string) { sealedTail(t, dir) }, 61},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			c.make(t, dir)
			name := tailFile(t, dir)
			var base, id uint64
			if _, err := fmt.Sscanf(filepath.Base(name), "%020d-%016x.wal", &base, &id); err != nil {
				t.Fatal(err)
			}
			info := types.SegmentInfo{BaseIndex: base, ID: id, MinIndex: base}
			if segment.FileName(info) != filepath.Base(name) {
				t.Fatalf("%s is %s", name, segment.FileName(info))
			}
			good, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			largest := largestAppend(4)
			want, err := scanFile(t, name, largest)
			if err != nil || want.entries == 0 || want.torn {
				t.Fatalf("%+v, %v", want, err)
			}
			ends := commits(t, good)
			span := min(len(good), ends[len(ends)-1]+100)
			f, err := os.OpenFile(name, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			var refused, taken int
			for bit := 0; bit < 8*span; bit += 1 + rand.IntN(2*c.one-1) { // others each time
				bad := []byte{good[bit/8] ^ 1<<(bit%8)}
				if _, err := f.WriteAt(bad, int64(bit/8)); err != nil {
					t.Fatal(err)
				}
				s := types.PersistentState{NextSegmentID: id + 1, Segments: []types.SegmentInfo{info}}
				_, err := repairTail(dir, &s, largest)
				if err == nil {
					taken++
					if got, err := scanFile(t, name, largest); err != nil || got != want {
						t.Fatalf("bit %d of byte %d: %+v, %v; without it %+v", bit%8, bit/8, got, err, want)
					}
				} else {
					refused++
					now := make([]byte, 1)
					if _, rerr := f.ReadAt(now, int64(bit/8)); rerr != nil || now[0] != bad[0] || !errors.Is(err, ErrDamaged) {
						t.Fatalf("bit %d of byte %d: %v, %v", bit%8, bit/8, err, rerr)
					}
				}
				if _, err := f.WriteAt(good[bit/8:bit/8+1], int64(bit/8)); err != nil {
					t.Fatal(err)
				}
			}
			t.Logf("%d bits: %d refused, %d do no harm", refused+taken, refused, taken)
			// What does no harm is behind the last commit, or in what a commit
			// keeps free.
			if most := 8*100 + 3*8*len(ends); refused == 0 || taken > most {
				t.Errorf("%d do no harm, at most %d can", taken, most)
			}
			if b, err := os.ReadFile(name); err != nil || !bytes.Equal(b, good) {
				t.Errorf("in the end the file is another (%v)", err)
			}
		})
	}
}

// The same for logs of any form, opened and read as a server does it.
func TestAnyBitOfAnyLog(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		dir, err := os.MkdirTemp("", "rot")
		if err != nil {
			r.Fatal(err)
		}
		defer os.RemoveAll(dir)
		size := rapid.IntRange(1, 900).Draw(r, "size")
		last := logOf(r, dir, size, rapid.SliceOfN(rapid.IntRange(1, 4), 1, 8).Draw(r, "appends"))
		name := tailFile(t, dir)
		bad, err := os.ReadFile(name)
		if err != nil {
			r.Fatal(err)
		}
		span := len(bad)
		if ends := commits(t, bad); len(ends) > 0 && rapid.Bool().Draw(r, "not in the free space") {
			span = ends[len(ends)-1]
		}
		bit := rapid.IntRange(0, 8*span-1).Draw(r, "bit")
		bad[bit/8] ^= 1 << (bit % 8)
		if err := os.WriteFile(name, bad, 0o600); err != nil {
			r.Fatal(err)
		}
		s, err := openStore(dir, 8<<10, 4, newLatch(dir, nil, nil), &hcLogger{to: discard})
		if err != nil {
			if b, rerr := os.ReadFile(name); rerr != nil || !bytes.Equal(b, bad) || !errors.Is(err, ErrDamaged) {
				r.Fatalf("%v; the file may have been changed (%v)", err, rerr)
			}
			return
		}
		defer s.close()
		if got, err := s.LastIndex(); err != nil || got != last {
			r.Fatalf("last index %d, %v; %d are confirmed", got, err, last)
		}
		for i := uint64(1); i <= last; i++ {
			var l raft.Log
			if err := s.GetLog(i, &l); err != nil || !bytes.Equal(l.Data, logAt(i, size).Data) {
				r.Fatalf("entry %d: %v", i, err)
			}
		}
	})
}
