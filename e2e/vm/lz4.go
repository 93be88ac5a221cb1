package main

import (
	"encoding/binary"
	"errors"
)

// errLZ4 is all there is to say about packed bytes that make no sense.
var errLZ4 = errors.New("lz4: the packed bytes make no sense")

// legacyBlock is how much one block of the old lz4 format, the kernel's, holds at most.
const legacyBlock = 8 << 20

// unpackLZ4 unpacks the old lz4 format: after the magic number, blocks behind their lengths.
func unpackLZ4(packed []byte) ([]byte, error) {
	var out []byte
	for packed = packed[4:]; len(packed) >= 4; {
		n := int(binary.LittleEndian.Uint32(packed))
		if n > len(packed)-4 {
			return nil, errLZ4
		}
		block, err := unpackBlock(packed[4 : 4+n])
		if err != nil {
			return nil, err
		}
		out, packed = append(out, block...), packed[4+n:]
	}
	return out, nil
}

// unpackBlock follows the block format: literals, then a copy of what came before, and again.
func unpackBlock(in []byte) ([]byte, error) {
	out := make([]byte, 0, legacyBlock)
	// length reads the rest of one that does not fit into four bits.
	length := func(n int) (int, bool) {
		for more := n == 15; more; {
			if len(in) == 0 {
				return 0, false
			}
			n, more = n+int(in[0]), in[0] == 255
			in = in[1:]
		}
		return n, true
	}
	for len(in) > 0 {
		token := in[0]
		in = in[1:]
		n, ok := length(int(token >> 4))
		if !ok || n > len(in) || len(out)+n > legacyBlock {
			return nil, errLZ4
		}
		out, in = append(out, in[:n]...), in[n:]
		if len(in) == 0 {
			return out, nil // the last has no copy
		}
		if len(in) < 2 {
			return nil, errLZ4
		}
		back := int(binary.LittleEndian.Uint16(in))
		in = in[2:]
		n, ok = length(int(token & 15))
		n += 4
		if !ok || back == 0 || back > len(out) || len(out)+n > legacyBlock {
			return nil, errLZ4
		}
		for range n { // what is copied may overlap what it makes
			out = append(out, out[len(out)-back])
		}
	}
	return out, nil
}
