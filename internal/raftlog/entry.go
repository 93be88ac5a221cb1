package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// An entry of the log, all integers little endian:
//
//	byte   0      version of this framing
//	bytes  1..4   CRC-32C of everything after
//	bytes  5..12  at: the leader's clock, microseconds since the epoch
//	bytes 13..16  number of proposals, n
//	then          n lengths of 4 bytes, then the proposals one after another
//
// The checksum is not for torn writes (the write-ahead log has its own for
// those) but for bits that rot later: what is applied is what was proposed.
const (
	entryVersion = 1
	entryHeader  = 17
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var errEntryNewer = errors.New("its framing is newer than this version")

// encodeEntry frames proposals.
func encodeEntry(at int64, proposals [][]byte) []byte {
	size := entryHeader + 4*len(proposals)
	for _, p := range proposals {
		size += len(p)
	}
	b := make([]byte, entryHeader+4*len(proposals), size)
	b[0] = entryVersion
	binary.LittleEndian.PutUint64(b[5:], uint64(at))
	binary.LittleEndian.PutUint32(b[13:], uint32(len(proposals)))
	for i, p := range proposals {
		binary.LittleEndian.PutUint32(b[entryHeader+4*i:], uint32(len(p)))
		b = append(b, p...)
	}
	binary.LittleEndian.PutUint32(b[1:], crc32.Checksum(b[5:], castagnoli))
	return b
}

// decodeEntry undoes encodeEntry. The proposals share b's memory.
func decodeEntry(b []byte) (at int64, proposals [][]byte, err error) {
	if len(b) < entryHeader {
		return 0, nil, fmt.Errorf("it is cut short: %d bytes", len(b))
	}
	if b[0] != entryVersion {
		return 0, nil, fmt.Errorf("%w: %d", errEntryNewer, b[0])
	}
	if crc32.Checksum(b[5:], castagnoli) != binary.LittleEndian.Uint32(b[1:]) {
		return 0, nil, errors.New("its checksum is wrong")
	}
	at = int64(binary.LittleEndian.Uint64(b[5:]))
	n := int(binary.LittleEndian.Uint32(b[13:]))
	if n > (len(b)-entryHeader)/4 {
		return 0, nil, fmt.Errorf("it claims %d proposals in %d bytes", n, len(b))
	}
	if n == 0 {
		return at, nil, nil
	}
	proposals = make([][]byte, n)
	rest := b[entryHeader+4*n:]
	for i := range proposals {
		size := int(binary.LittleEndian.Uint32(b[entryHeader+4*i:]))
		if size > len(rest) {
			return 0, nil, fmt.Errorf("proposal %d of %d is longer than what is left", i, n)
		}
		proposals[i] = rest[:size:size]
		rest = rest[size:]
	}
	if len(rest) > 0 {
		return 0, nil, fmt.Errorf("%d bytes are left over", len(rest))
	}
	return at, proposals, nil
}
