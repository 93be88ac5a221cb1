package raftlog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/bits"
	"os"

	"golang.org/x/sys/unix"
)

// pieceSize is the least that a disk, or memory that is one, writes as a whole.
// Of a torn append each piece is there or, as the segment was zero before, zero.
const pieceSize = 64

// largestAppend is how many bytes an append of that many entries can write,
// without the index of a segment that it seals.
func largestAppend(entries int) int64 {
	const proposals = max(maxEntryBytes, MaxProposal) + entryHeader + 4*maxEntryProposals
	const around = 256 // raft's own fields, and the frame
	return int64(entries)*(proposals+around) + segmentHead + 2*frameHead
}

// stop is how the frames of a segment end.
type stop int

const (
	stopZero stop = iota // at nothing, or at the end of the file
	stopHead             // at something that is no frame's head
	stopSum              // at a commit whose checksum is wrong, and nothing behind it
)

// tornBehind decides what it means that behind the last good commit, at end,
// the frames of f do not go on to another: nothing is there; or what a torn
// append left, which may be cleared; or ErrDamaged, because confirmed entries
// are there or may be.
//
// A torn append lacks pieces of itself and has nothing behind it. So it is
// damage if a head is neither good nor missing, if something is there that no
// single append can have written, if a later append is found whole, or if the
// last one lacks nothing. The last is also told from the checksum: it says when
// a single wrong bit is all there is.
func tornBehind(f *os.File, end tailEnd, how stop, largest int64) (torn bool, err error) {
	first, last, err := dataSpan(f, end.offset)
	if err != nil || first == last {
		return false, err
	}
	if one, err := isOneBit(f, first, last); one || err != nil {
		return one, err // in the free space: no entry is that small
	}
	damaged := func(why string, args ...any) error {
		return fmt.Errorf("%w: it cannot be read from byte %d on, and %s", ErrDamaged, end.offset, fmt.Sprintf(why, args...))
	}
	if last-end.offset > largest+4*int64(end.entries) {
		return false, damaged("what is there up to byte %d is more than was ever written at once", last)
	}
	b := make([]byte, last-end.offset)
	if _, err := f.ReadAt(b, end.offset); err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	if at, ok := findAppend(b); ok {
		return false, damaged("confirmed entries follow at byte %d", end.offset+int64(at))
	}
	if how == stopHead || how == stopSum && !lacksPiece(b, end.offset) || oneBitOff(b) {
		return false, damaged("what is there up to byte %d was not cut short by a crash", last)
	}
	return true, nil
}

// isOneBit says whether one bit is all there is in that span of f.
func isOneBit(f *os.File, first, last int64) (bool, error) {
	if last-first != frameHead {
		return false, nil
	}
	var b [frameHead]byte
	if _, err := f.ReadAt(b[:], first); err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	return bits.OnesCount64(binary.LittleEndian.Uint64(b[:])) == 1, nil
}

// findAppend looks for a whole append, at any place in b.
func findAppend(b []byte) (at int, ok bool) {
	for at = 0; at < len(b); at += frameHead {
		if isAppend(b[at:]) {
			return at, true
		}
	}
	return 0, false
}

// isAppend says whether b begins with frames up to a commit, and its checksum
// is theirs.
func isAppend(b []byte) bool {
	for off := 0; off+frameHead <= len(b); {
		kind, n := binary.LittleEndian.Uint32(b[off:]), binary.LittleEndian.Uint32(b[off+4:])
		switch {
		case kind == frameCommit:
			return off > 0 && crc32.Checksum(b[:off], castagnoli) == n
		case (kind == frameEntry || kind == frameIndex) && n <= maxFrameData:
			off += frameHead + int(n+7)&^7
		default:
			return false
		}
	}
	return false
}

// lacksPiece says whether one piece of b, which stands at offset, is all zero.
func lacksPiece(b []byte, offset int64) bool {
	var zero [pieceSize]byte
	for len(b) > 0 {
		n := min(len(b), pieceSize-int(offset%pieceSize))
		if bytes.Equal(b[:n], zero[:n]) {
			return true
		}
		b, offset = b[n:], offset+int64(n)
	}
	return false
}

// oneBitOff says whether b is an append but for one bit. Its commit is what
// ends it; the frames before may not lead there, if the bit is in one of their
// heads.
//
// A checksum of this kind is linear: a wrong bit changes it by a value that
// depends only on how far from the end the bit is, and up to 2^31 bits no two
// places have the same. So the difference of the checksums says which bit it
// is. A torn append passes for one with as many chances in 2^32 as it has bits.
func oneBitOff(b []byte) bool {
	end := len(b) - frameHead
	if end <= 0 {
		return false
	}
	kind, sum := binary.LittleEndian.Uint32(b[end:]), binary.LittleEndian.Uint32(b[end+4:])
	differs := sum ^ crc32.Checksum(b[:end], castagnoli)
	if kind != frameCommit {
		return bits.OnesCount32(kind^frameCommit) == 1 && differs == 0
	}
	if bits.OnesCount32(differs) <= 1 { // it is in the checksum itself
		return true
	}
	change := uint32(1)
	for range 8 * end {
		odd := change & 1
		change >>= 1
		if odd == 1 {
			change ^= crc32.Castagnoli
		}
		if change == differs {
			return true
		}
	}
	return false
}

// dataSpan is from the first to the last frame head of f, from offset on, that is
// not zero; it is empty if there is none. A segment is allocated at once and
// mostly holes; those are not read.
func dataSpan(f *os.File, offset int64) (first, last int64, err error) {
	fd := int(f.Fd())
	buf := make([]byte, 64<<10)
	for at := offset; ; {
		from, err := unix.Seek(fd, at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return first, last, nil
		}
		if err != nil {
			return 0, 0, err
		}
		to, err := unix.Seek(fd, from, unix.SEEK_HOLE)
		if err != nil {
			return 0, 0, err
		}
		for from < to {
			n, err := f.ReadAt(buf[:min(int64(len(buf)), to-from)], from)
			if k := len(bytes.TrimRight(buf[:n], "\x00")); k > 0 {
				if last == 0 {
					first = (from + int64(n-len(bytes.TrimLeft(buf[:n], "\x00")))) &^ (frameHead - 1)
				}
				last = (from + int64(k) + frameHead - 1) &^ (frameHead - 1)
			}
			if err != nil && !errors.Is(err, io.EOF) {
				return 0, 0, err
			}
			if n == 0 {
				break
			}
			from += int64(n)
		}
		at = to
	}
}
