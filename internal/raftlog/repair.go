package raftlog

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
	"golang.org/x/sys/unix"

	"github.com/musterhq/muster/internal/atomicfile"
)

// The segment format of raft-wal, as far as its tail must be understood.
const (
	segmentHead  = 32
	frameHead    = 8
	frameNone    = 0
	frameEntry   = 1
	frameIndex   = 2
	frameCommit  = 3
	frameBad     = 4 // none of these
	maxFrameData = segment.MaxEntrySize
)

// repairTail makes the last segment of the log one that raft-wal v0.4.2 can go
// on with after a crash. If it seals the segment, s is changed and must be
// recorded anew. Three things are put right:
//
//   - A crash after a segment was sealed and before the next one was recorded:
//     raft-wal takes the sealed file for its tail and then refuses every append
//     with "segment is sealed", for ever.
//   - A crash in the middle of the append that seals: the index without its
//     commit has the same effect.
//   - A torn append leaves its bytes behind the last commit. Later appends
//     overwrite only some of them, and a later recovery could take the rest for
//     entries. They are cleared.
//
// Nothing is written before what precedes it is on disk, so a torn append is the
// last, and it lacks something. What cannot be read and is not like that are
// confirmed entries that were damaged: such a log is refused and left as it is.
// largest is how many bytes one append can have.
func repairTail(dir string, s *types.PersistentState, largest int64) (done repair, err error) {
	if len(s.Segments) == 0 {
		return done, nil
	}
	tail := &s.Segments[len(s.Segments)-1]
	if !tail.SealTime.IsZero() {
		return done, nil
	}
	name := segment.FileName(*tail)
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) { // recorded and not yet made: raft-wal makes it
		return done, nil
	}
	if err != nil {
		return done, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()

	end, err := scanTail(f, largest)
	if err != nil {
		return done, fmt.Errorf("log segment %s: %w", name, err)
	}
	if err := wholeLength(f, tail, end); err != nil {
		return done, fmt.Errorf("log segment %s: %w", name, err)
	}
	if end.torn {
		if err := clearFrom(f, end.offset); err != nil {
			return done, fmt.Errorf("log segment %s: %w", name, err)
		}
		done.segment, done.torn = name, true
	}
	// raft-wal syncs the directory only for files that it made in this run.
	if err := atomicfile.SyncDir(dir); err != nil {
		return done, err
	}
	if end.indexStart == 0 || end.entries == 0 {
		return done, nil
	}
	done.segment, done.sealed = name, true
	now := time.Now()
	tail.SealTime = now
	tail.IndexStart = end.indexStart
	tail.MaxIndex = tail.BaseIndex + end.entries - 1
	next := types.SegmentInfo{
		ID:         s.NextSegmentID,
		BaseIndex:  tail.MaxIndex + 1,
		MinIndex:   tail.MaxIndex + 1,
		SizeLimit:  tail.SizeLimit,
		Codec:      wal.CodecBinaryV1,
		CreateTime: now,
	}
	s.NextSegmentID++
	s.Segments = append(s.Segments, next)
	return done, nil
}

// wholeLength sees to it that a segment has its length before its first entry,
// which a disk without room may have kept it from, and refuses one that is
// shorter and has entries: a copy that broke off, without what was confirmed last.
func wholeLength(f *os.File, s *types.SegmentInfo, end tailEnd) error {
	st, err := f.Stat()
	if err != nil || st.Size() >= int64(s.SizeLimit) {
		return err
	}
	if end.entries > 0 {
		return fmt.Errorf("%w: it has %d bytes of %d, so what was confirmed last is missing", ErrDamaged, st.Size(), s.SizeLimit)
	}
	err = unix.Fallocate(int(f.Fd()), 0, 0, int64(s.SizeLimit))
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = f.Truncate(int64(s.SizeLimit))
	}
	if err != nil {
		return err
	}
	return f.Sync()
}

// repair is what repairTail did.
type repair struct {
	segment string
	torn    bool // cleared what was behind the last commit
	sealed  bool // finished a rotation
}

// tailEnd is where the good part of a segment ends.
type tailEnd struct {
	offset     int64  // after the last commit; 0 if there is none
	entries    uint64 // committed
	indexStart uint64 // not 0: the segment is sealed, and the index is there
	torn       bool   // something is behind offset
}

// scanTail walks the frames of a segment and checks every commit.
func scanTail(f *os.File, largest int64) (end tailEnd, err error) {
	r := &frameScanner{r: bufio.NewReaderSize(f, 1<<20)}
	if err := r.header(); err != nil {
		return end, err
	}
	var entries, indexStart uint64
	for {
		kind, sum, err := r.frame()
		if err != nil {
			return end, err
		}
		switch kind {
		case frameNone, frameBad:
			how := stopZero
			if kind == frameBad {
				how = stopHead
			}
			end.torn, err = tornBehind(f, end, how, largest)
			return end, err
		case frameEntry:
			entries++
		case frameIndex:
			indexStart = r.dataStart
		case frameCommit:
			if sum != r.crc {
				more, err := r.moreFollows()
				if err != nil {
					return end, err
				}
				if more {
					return end, fmt.Errorf("%w: wrong checksum before byte %d, after %d good entries", ErrDamaged, r.offset, end.entries)
				}
				end.torn, err = tornBehind(f, end, stopSum, largest)
				return end, err
			}
			r.crc = 0
			end.offset, end.entries, end.indexStart = r.offset, entries, indexStart
		}
	}
}

// frameScanner reads frames one after another.
type frameScanner struct {
	r         *bufio.Reader
	offset    int64
	dataStart uint64
	crc       uint32 // of everything since the last commit
	buf       []byte
}

// take reads n bytes; short means that the file ends before.
func (s *frameScanner) take(n int) (b []byte, short bool, err error) {
	if cap(s.buf) < n {
		s.buf = make([]byte, max(n, 64<<10))
	}
	b = s.buf[:n]
	_, err = io.ReadFull(s.r, b)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, true, nil
	}
	s.offset += int64(n)
	return b, false, err
}

func (s *frameScanner) header() error {
	b, short, err := s.take(segmentHead)
	if err != nil || short {
		return err
	}
	s.crc = crc32.Update(0, castagnoli, b)
	return nil
}

// frame reads one frame. sum is a commit's. A frame's head is never torn, being
// smaller than anything that a disk writes: it is good, or it is zero.
func (s *frameScanner) frame() (kind byte, sum uint32, err error) {
	b, short, err := s.take(frameHead)
	if err != nil || short {
		return frameNone, 0, err
	}
	kind, n := b[0], binary.LittleEndian.Uint32(b[4:])
	switch {
	case binary.LittleEndian.Uint64(b) == 0:
		return frameNone, 0, nil
	case kind == frameCommit:
		return frameCommit, n, nil
	case kind != frameEntry && kind != frameIndex || n > maxFrameData:
		return frameBad, 0, nil
	}
	s.crc = crc32.Update(s.crc, castagnoli, b)
	s.dataStart = uint64(s.offset)
	b, short, err = s.take(int(n+7) &^ 7)
	if err != nil || short {
		return frameNone, 0, err
	}
	s.crc = crc32.Update(s.crc, castagnoli, b)
	return kind, 0, nil
}

// moreFollows says whether another frame begins here.
func (s *frameScanner) moreFollows() (bool, error) {
	b, short, err := s.take(frameHead)
	if err != nil || short {
		return false, err
	}
	return binary.LittleEndian.Uint64(b) != 0, nil
}

// clearFrom makes everything from offset on zero, durably, at the same length.
func clearFrom(f *os.File, offset int64) error {
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if err := f.Truncate(offset); err != nil {
		return err
	}
	if err := f.Truncate(st.Size()); err != nil {
		return err
	}
	return f.Sync()
}
