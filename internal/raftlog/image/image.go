// Package image is the format of a snapshot of the log on disk and, the same bytes, of a backup. It can be
// written as a stream, and whoever reads it notices a cut or a changed bit before the machine sees it.
//
// Every version must read what an earlier one wrote.
package image

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/hashicorp/raft"
)

// ChunkSize is the length of a chunk in bytes, but for the last.
const ChunkSize = 256 << 10

// An image file, all integers little endian:
//
//	8 bytes   magic
//	4 + 4     length of the header, its CRC-32C
//	…         header, JSON
//	chunks:   4 length, 4 CRC-32C of the body so far, bytes
//	end:      4 zero, 4 CRC-32C of the body, 8 length of the body
const (
	magic   = "MUSTER\x00\x01"
	format  = 1
	trailer = 16
	headMax = 16 << 20
)

// Header comes first in an image file.
type Header struct {
	Format int    `json:"format"`
	Made   int64  `json:"made"` // leader's clock of the state, microseconds; 0 in snapshots
	Index  uint64 `json:"index"`
	Term   uint64 `json:"term"`

	// Configuration is raft's: who has a vote. A restored backup gets a new one.
	Configuration      raft.Configuration `json:"configuration"`
	ConfigurationIndex uint64             `json:"configuration_index"`
}

// Writer writes the body in chunks. It buffers; Finish writes the rest.
type Writer struct {
	w   io.Writer
	buf []byte // place for a chunk's header, then the chunk
	crc uint32
	n   uint64
}

const chunkHead = 8

var table = crc32.MakeTable(crc32.Castagnoli)

// Why an image is refused.
var (
	ErrNewer   = errors.New("written by a newer version")
	ErrDamaged = errors.New("damaged")
)

// NewWriter writes the header.
func NewWriter(w io.Writer, h Header) (*Writer, error) {
	h.Format = format
	head, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	b := append([]byte(magic), make([]byte, 8)...)
	binary.LittleEndian.PutUint32(b[8:], uint32(len(head)))
	binary.LittleEndian.PutUint32(b[12:], crc32.Checksum(head, table))
	if _, err := w.Write(append(b, head...)); err != nil {
		return nil, err
	}
	return &Writer{w: w, buf: make([]byte, chunkHead, chunkHead+ChunkSize)}, nil
}

// Write adds to the body.
func (w *Writer) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		k := min(len(p), cap(w.buf)-len(w.buf))
		w.buf = append(w.buf, p[:k]...)
		p = p[k:]
		if len(w.buf) == cap(w.buf) {
			if err := w.flush(); err != nil {
				return n - len(p), err
			}
		}
	}
	return n, nil
}

func (w *Writer) flush() error {
	body := w.buf[chunkHead:]
	if len(body) == 0 {
		return nil
	}
	w.crc = crc32.Update(w.crc, table, body)
	w.n += uint64(len(body))
	binary.LittleEndian.PutUint32(w.buf, uint32(len(body)))
	binary.LittleEndian.PutUint32(w.buf[4:], w.crc)
	_, err := w.w.Write(w.buf)
	w.buf = w.buf[:chunkHead]
	return err
}

// Finish writes what is buffered and the end.
func (w *Writer) Finish() error {
	if err := w.flush(); err != nil {
		return err
	}
	var end [trailer]byte
	binary.LittleEndian.PutUint32(end[4:], w.crc)
	binary.LittleEndian.PutUint64(end[8:], w.n)
	_, err := w.w.Write(end[:])
	return err
}

// Reader reads the body and checks it on the way: EOF means that all of
// it was there.
type Reader struct {
	r     io.Reader
	chunk []byte // what is left of the current chunk
	buf   []byte
	crc   uint32
	n     uint64
	err   error
}

// Length is how many bytes of the body were written.
func (w *Writer) Length() int64 { return int64(w.n) + int64(len(w.buf)-chunkHead) }

// NewReader reads the header. It returns ErrDamaged or ErrNewer for what is no image that it knows.
func NewReader(r io.Reader) (*Reader, Header, error) {
	var h Header
	var b [16]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return nil, h, cut(err)
	}
	if !bytes.Equal(b[:7], []byte(magic)[:7]) {
		return nil, h, fmt.Errorf("%w: it does not begin like an image of Muster", ErrDamaged)
	}
	if b[7] != magic[7] {
		return nil, h, fmt.Errorf("image of format %d: %w", b[7], ErrNewer)
	}
	size := binary.LittleEndian.Uint32(b[8:])
	if size > headMax {
		return nil, h, fmt.Errorf("%w: a header of %d bytes", ErrDamaged, size)
	}
	head := make([]byte, size)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, h, cut(err)
	}
	if crc32.Checksum(head, table) != binary.LittleEndian.Uint32(b[12:]) {
		return nil, h, fmt.Errorf("%w: wrong checksum of the header", ErrDamaged)
	}
	if err := json.Unmarshal(head, &h); err != nil {
		return nil, h, fmt.Errorf("%w: header: %w", ErrDamaged, err)
	}
	if h.Format != format {
		return nil, h, fmt.Errorf("image of format %d: %w", h.Format, ErrNewer)
	}
	return &Reader{r: r}, h, nil
}

// Length is how many bytes of the body were read from the file.
func (r *Reader) Length() int64 { return int64(r.n) }

func cut(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: it is cut short", ErrDamaged)
	}
	return err
}

// Read gives the next bytes of the body, which are right as far as they go.
func (r *Reader) Read(p []byte) (int, error) {
	for len(r.chunk) == 0 {
		if r.err == nil {
			r.err = r.next()
		}
		if r.err != nil {
			return 0, r.err
		}
	}
	n := copy(p, r.chunk)
	r.chunk = r.chunk[n:]
	return n, nil
}

func (r *Reader) next() error {
	var head [chunkHead]byte
	if _, err := io.ReadFull(r.r, head[:]); err != nil {
		return cut(err)
	}
	size := binary.LittleEndian.Uint32(head[:])
	sum := binary.LittleEndian.Uint32(head[4:])
	if size == 0 {
		var end [8]byte
		if _, err := io.ReadFull(r.r, end[:]); err != nil {
			return cut(err)
		}
		if sum != r.crc || binary.LittleEndian.Uint64(end[:]) != r.n {
			return fmt.Errorf("%w: wrong checksum at the end", ErrDamaged)
		}
		return io.EOF
	}
	if size > ChunkSize {
		return fmt.Errorf("%w: a chunk of %d bytes at %d", ErrDamaged, size, r.n)
	}
	if r.buf == nil {
		r.buf = make([]byte, ChunkSize)
	}
	if _, err := io.ReadFull(r.r, r.buf[:size]); err != nil {
		return cut(err)
	}
	r.crc = crc32.Update(r.crc, table, r.buf[:size])
	if r.crc != sum {
		return fmt.Errorf("%w: wrong checksum at byte %d", ErrDamaged, r.n)
	}
	r.n += uint64(size)
	r.chunk = r.buf[:size]
	return nil
}

// BodyLength is what the end of an image file of the given size says.
func BodyLength(f io.ReaderAt, size int64) (int64, error) {
	if size < trailer {
		return 0, fmt.Errorf("%w: it is cut short", ErrDamaged)
	}
	var end [trailer]byte
	if _, err := f.ReadAt(end[:], size-trailer); err != nil {
		return 0, err
	}
	n := binary.LittleEndian.Uint64(end[8:])
	if binary.LittleEndian.Uint32(end[:]) != 0 || n > uint64(size) {
		return 0, fmt.Errorf("%w: it is cut short", ErrDamaged)
	}
	return int64(n), nil
}
