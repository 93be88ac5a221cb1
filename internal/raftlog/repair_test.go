package raftlog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/types"
	"pgregory.net/rapid"

	"github.com/musterhq/muster/internal/raftlog/image"
)

// stubborn records nothing more after n lists of segments: as if the process
// had been killed before.
type stubborn struct {
	metadb.BoltMetaDB
	n int
}

func (m *stubborn) CommitState(s types.PersistentState) error {
	if m.n--; m.n < 0 {
		return errors.New("killed")
	}
	return m.BoltMetaDB.CommitState(s)
}

func logAt(i uint64, size int) *raft.Log {
	return &raft.Log{Index: i, Term: 1, Data: bytes.Repeat([]byte{byte(i)}, size)}
}

// sealedTail leaves a log that was killed after its first segment was sealed
// and before the second was recorded. It gives the last index that is in it.
func sealedTail(t *testing.T, dir string) (last uint64) {
	t.Helper()
	w, err := wal.Open(dir, wal.WithSegmentSize(8<<10), wal.WithMetaStore(&stubborn{n: 1}), wal.WithLogger(hclog.NewNullLogger()))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for i := uint64(1); ; i++ {
		if err := w.StoreLog(logAt(i, 300)); errors.Is(err, wal.ErrSealed) {
			return i - 1
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

func openTestStore(t *testing.T, dir string) *store {
	t.Helper()
	s, err := openStore(dir, 8<<10, 4, newLatch(dir, nil, nil), &hcLogger{to: discard})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// has fails unless the log holds exactly 1 to last, and takes more.
func has(t *testing.T, dir string, last uint64, size int) {
	t.Helper()
	s := openTestStore(t, dir)
	if got, err := s.LastIndex(); err != nil || got != last {
		t.Fatalf("last index %d, %v; want %d", got, err, last)
	}
	for i := uint64(1); i <= last+3; i++ {
		if i > last {
			if err := s.StoreLog(logAt(i, size)); err != nil {
				t.Fatalf("append %d: %v", i, err)
			}
		}
		var l raft.Log
		if err := s.GetLog(i, &l); err != nil || !bytes.Equal(l.Data, logAt(i, size).Data) {
			t.Fatalf("entry %d: %v", i, err)
		}
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
}

func TestSealedAndNotRotated(t *testing.T) {
	dir := t.TempDir()
	last := sealedTail(t, dir)
	// Why the repair is there. Should this fail one day, raft-wal has learnt it,
	// and part of the repair can go.
	w, err := wal.Open(dir, wal.WithSegmentSize(8<<10), wal.WithLogger(hclog.NewNullLogger()))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.StoreLog(logAt(last+1, 300)); !errors.Is(err, wal.ErrSealed) {
		t.Errorf("bare raft-wal: %v; it used to refuse this for ever", err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	has(t, dir, last, 300)
	has(t, dir, last+3, 300)
}

// tailFile is the newest segment of a log.
func tailFile(t testing.TB, dir string) string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.wal"))
	if err != nil || len(names) == 0 {
		t.Fatalf("no segments in %s: %v", dir, err)
	}
	return names[len(names)-1]
}

// commits are the ends of the commits in a segment.
func commits(t testing.TB, b []byte) (ends []int) {
	t.Helper()
	for off := segmentHead; off+frameHead <= len(b); {
		kind, n := b[off], int(binary.LittleEndian.Uint32(b[off+4:]))
		switch kind {
		case frameCommit:
			off += frameHead
			ends = append(ends, off)
		case frameEntry, frameIndex:
			off += frameHead + (n+7)&^7
		default:
			return ends
		}
	}
	return ends
}

// A crash leaves any part of the last append, in any order, and nothing else is
// harmed: the log ends before it or, if it is whole, with it.
func TestTornAppend(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		dir, err := os.MkdirTemp("", "torn")
		if err != nil {
			r.Fatal(err)
		}
		defer os.RemoveAll(dir)
		s := openTestStore(t, dir)
		size := rapid.IntRange(1, 900).Draw(r, "size")
		batches := rapid.SliceOfN(rapid.IntRange(1, 4), 1, 8).Draw(r, "batches")
		var last, kept uint64
		for _, n := range batches {
			kept = last
			var logs []*raft.Log
			for range n {
				last++
				logs = append(logs, logAt(last, size))
			}
			if err := s.StoreLogs(logs); err != nil {
				r.Fatal(err)
			}
		}
		if err := s.close(); err != nil {
			r.Fatal(err)
		}
		name := tailFile(t, dir)
		b, err := os.ReadFile(name)
		if err != nil {
			r.Fatal(err)
		}
		ends := commits(t, b)
		if len(ends) == 0 { // the last append sealed a segment and this is the next
			has(t, dir, last, size)
			return
		}
		from := segmentHead
		if len(ends) > 1 {
			from = ends[len(ends)-2]
		} else {
			from = 0 // the first append of a segment writes its header, too
		}
		end := ends[len(ends)-1]
		torn := bytes.Clone(b)
		if rapid.Bool().Draw(r, "short") { // the write stopped: kill -9
			// That happens between two pages, and never inside a frame's head:
			// what is written starts at a page of memory, in the file at a head.
			cut := frameHead * rapid.IntRange(from/frameHead, end/frameHead-1).Draw(r, "cut")
			clear(torn[cut:end])
		} else { // sectors of it are missing: the power went
			sector := rapid.SampledFrom([]int{pieceSize, 512, 4096}).Draw(r, "sector")
			for range rapid.IntRange(1, 4).Draw(r, "holes") {
				hole := rapid.IntRange(from/sector, (end-1)/sector).Draw(r, "hole")
				clear(torn[max(from, hole*sector):min(end, hole*sector+sector)])
			}
		}
		if err := os.WriteFile(name, torn, 0o600); err != nil {
			r.Fatal(err)
		}
		want := kept
		if bytes.Equal(torn, b) {
			want = last
		}
		has(t, dir, want, size)
		has(t, dir, want+3, size)
	})
}

// What a torn append leaves must not come back as entries: its bytes are made
// to look like a longer log than the one that is written over them.
func TestLeftoversAreCleared(t *testing.T) {
	dir := t.TempDir()
	s := openTestStore(t, dir)
	for i := uint64(1); i <= 3; i++ {
		if err := s.StoreLog(logAt(i, 40)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	name := tailFile(t, dir)
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	end := commits(t, b)[2]
	// A torn append: its first entry is cut, and behind it stand whole frames.
	ghost := end + 120
	copy(b[end:], []byte{frameEntry, 0, 0, 0, 112, 0, 0, 0})
	copy(b[ghost:], []byte{frameEntry, 0, 0, 0, 8, 0, 0, 0, 'g', 'h', 'o', 's', 't', 0, 0, 0})
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
	openTestStore(t, dir).close()
	b, err = os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if i := bytes.IndexFunc(b[end:], func(r rune) bool { return r != 0 }); i >= 0 {
		t.Errorf("byte %d behind the last commit is not zero", i)
	}
	has(t, dir, 3, 40)
}

// An index without its commit: the kill came in the append that seals.
func TestTornSeal(t *testing.T) {
	dir := t.TempDir()
	last := sealedTail(t, dir)
	name := tailFile(t, dir)
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	ends := commits(t, b)
	clear(b[ends[len(ends)-1]-frameHead:]) // the commit is gone, the index stays
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
	has(t, dir, last-1, 300)
	has(t, dir, last+2, 300)
}

// Damage in front of confirmed entries is not mistaken for a torn append.
func TestDamageIsRefused(t *testing.T) {
	dir := t.TempDir()
	s := openTestStore(t, dir)
	for i := uint64(1); i <= 5; i++ {
		if err := s.StoreLog(logAt(i, 40)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	name := tailFile(t, dir)
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	b[commits(t, b)[1]+frameHead+20] ^= 1 // a bit of entry 3
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = openStore(dir, 8<<10, 4, newLatch(dir, nil, nil), &hcLogger{to: discard})
	if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), filepath.Base(name)) {
		t.Fatalf("got %v", err)
	}
}

// A bit that rots in a sealed segment is found when the entry is applied.
func TestRottenEntry(t *testing.T) {
	dir := t.TempDir()
	c := small(dir, &recorder{})
	c.SegmentSize = 16 << 10
	r := start(t, c)
	for i := range 100 {
		r.mustPropose(t, strings.Repeat("z", 300)+name(i))
	}
	r.mustStop(t)
	names, err := filepath.Glob(filepath.Join(dir, logName, "*.wal"))
	if err != nil || len(names) < 2 {
		t.Fatalf("%d segments, %v", len(names), err)
	}
	b, err := os.ReadFile(names[0])
	if err != nil {
		t.Fatal(err)
	}
	b[bytes.Index(b, []byte("zp000005"))] ^= 1
	if err := os.WriteFile(names[0], b, 0o600); err != nil {
		t.Fatal(err)
	}
	m := &recorder{}
	c.Machine = m
	r = startFollower(t, c)
	err = <-r.end
	r.end <- err
	var storage *StorageError
	if !errors.As(err, &storage) || storage.Op != OpDecode {
		t.Fatalf("Run: %v", err)
	}
	if n := len(m.list()); n != 5 {
		t.Errorf("%d applied, want those before the rotten one", n)
	}
}

func TestEntryRoundTrip(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		at := rapid.Int64().Draw(r, "at")
		in := rapid.SliceOfN(rapid.SliceOfN(rapid.Byte(), 0, 50), 0, 20).Draw(r, "proposals")
		b := encodeEntry(at, in)
		gotAt, out, err := decodeEntry(b)
		if err != nil || gotAt != at || len(out) != len(in) {
			r.Fatalf("%v, at %d, %d of %d", err, gotAt, len(out), len(in))
		}
		for i := range in {
			if !bytes.Equal(in[i], out[i]) {
				r.Fatalf("proposal %d differs", i)
			}
		}
		bad := bytes.Clone(b)
		if len(bad) > 0 {
			bad[rapid.IntRange(0, len(bad)-1).Draw(r, "where")] ^= 1 << rapid.IntRange(0, 7).Draw(r, "bit")
			if _, _, err := decodeEntry(bad); err == nil {
				r.Fatal("a changed bit went unnoticed")
			}
		}
		if _, _, err := decodeEntry(b[:rapid.IntRange(0, len(b)-1).Draw(r, "cut")]); err == nil {
			r.Fatal("a cut went unnoticed")
		}
		// With a good checksum over nonsense it may fail, and must not panic.
		binary.LittleEndian.PutUint32(bad[1:], crc32.Checksum(bad[5:], castagnoli))
		_, _, _ = decodeEntry(bad)
	})
}

// The framing is on people's disks: it changes only with its version.
func TestEntryGolden(t *testing.T) {
	got := fmt.Sprintf("%x", encodeEntry(1_700_000_000_123_456, [][]byte{[]byte("one"), {}, []byte("three")}))
	const want = "01" + "71c3c14f" + "40222018240a0600" + "03000000" + "030000000000000005000000" + "6f6e65" + "7468726565"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// Snapshots and backups, too, are on people's disks.
func TestImageGolden(t *testing.T) {
	var b bytes.Buffer
	w, err := image.NewWriter(&b, image.Header{Made: 5, Index: 7, Term: 3, Configuration: configurationAlone("s-1"), ConfigurationIndex: 1})
	if err != nil {
		t.Fatal(err)
	}
	p := point{index: 7, term: 3, at: 5, image: recorded{"state"}}
	if _, err := p.WriteTo(w); err != nil {
		t.Fatal(err)
	}
	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}
	const want = "MUSTER\x00\x01" + "\x8a\x00\x00\x00" + "\x55\xb2\x9d\x83" +
		`{"format":1,"made":5,"index":7,"term":3,"configuration":{"Servers":[{"Suffrage":0,"ID":"s-1","Address":"alone"}]},"configuration_index":1}` +
		"\x22\x00\x00\x00" + "\xbe\x18\x13\x7a" +
		"\x01" + "\x07\x00\x00\x00\x00\x00\x00\x00" + "\x03\x00\x00\x00\x00\x00\x00\x00" + "\x05\x00\x00\x00\x00\x00\x00\x00" + "\x05\x00\x00\x00state" +
		"\x00\x00\x00\x00" + "\xbe\x18\x13\x7a" + "\x22\x00\x00\x00\x00\x00\x00\x00"
	if got := b.String(); got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}
