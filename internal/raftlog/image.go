package raftlog

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

// An image file is a snapshot on disk and, the same bytes, a backup: it can be
// written as a stream, and whoever reads it notices a cut or a changed bit
// before the machine sees it. All integers little endian:
//
//	8 bytes   magic
//	4 + 4     length of the header, its CRC-32C
//	…         header, JSON
//	chunks:   4 length, 4 CRC-32C of the body so far, bytes
//	end:      4 zero, 4 CRC-32C of the body, 8 length of the body
const (
	imageMagic   = "MUSTER\x00\x01"
	imageFormat  = 1
	imageTrailer = 16
	imageChunk   = 256 << 10
	imageHeadMax = 16 << 20
)

// imageHeader comes first in an image file.
type imageHeader struct {
	Format int    `json:"format"`
	Made   int64  `json:"made"` // leader's clock of the state, microseconds; 0 in snapshots
	Index  uint64 `json:"index"`
	Term   uint64 `json:"term"`

	// Configuration is raft's: who has a vote. A restored backup gets a new one.
	Configuration      raft.Configuration `json:"configuration"`
	ConfigurationIndex uint64             `json:"configuration_index"`
}

// imageWriter writes the body in chunks. It buffers; finish writes the rest.
type imageWriter struct {
	w   io.Writer
	buf []byte // place for a chunk's header, then the chunk
	crc uint32
	n   uint64
}

const chunkHead = 8

func newImageWriter(w io.Writer, h imageHeader) (*imageWriter, error) {
	h.Format = imageFormat
	head, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	b := append([]byte(imageMagic), make([]byte, 8)...)
	binary.LittleEndian.PutUint32(b[8:], uint32(len(head)))
	binary.LittleEndian.PutUint32(b[12:], crc32.Checksum(head, castagnoli))
	if _, err := w.Write(append(b, head...)); err != nil {
		return nil, err
	}
	return &imageWriter{w: w, buf: make([]byte, chunkHead, chunkHead+imageChunk)}, nil
}

func (w *imageWriter) Write(p []byte) (int, error) {
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

func (w *imageWriter) flush() error {
	body := w.buf[chunkHead:]
	if len(body) == 0 {
		return nil
	}
	w.crc = crc32.Update(w.crc, castagnoli, body)
	w.n += uint64(len(body))
	binary.LittleEndian.PutUint32(w.buf, uint32(len(body)))
	binary.LittleEndian.PutUint32(w.buf[4:], w.crc)
	_, err := w.w.Write(w.buf)
	w.buf = w.buf[:chunkHead]
	return err
}

// finish writes what is buffered and the end.
func (w *imageWriter) finish() error {
	if err := w.flush(); err != nil {
		return err
	}
	var end [imageTrailer]byte
	binary.LittleEndian.PutUint32(end[4:], w.crc)
	binary.LittleEndian.PutUint64(end[8:], w.n)
	_, err := w.w.Write(end[:])
	return err
}

// imageReader reads the body and checks it on the way: EOF means that all of
// it was there.
type imageReader struct {
	r     io.Reader
	chunk []byte // what is left of the current chunk
	buf   []byte
	crc   uint32
	n     uint64
	err   error
}

// newImageReader reads the header.
func newImageReader(r io.Reader) (*imageReader, imageHeader, error) {
	var h imageHeader
	var b [16]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return nil, h, cut(err)
	}
	if !bytes.Equal(b[:7], []byte(imageMagic)[:7]) {
		return nil, h, fmt.Errorf("%w: it does not begin like an image of Muster", ErrDamaged)
	}
	if b[7] != imageMagic[7] {
		return nil, h, fmt.Errorf("image of format %d: %w", b[7], ErrNewer)
	}
	size := binary.LittleEndian.Uint32(b[8:])
	if size > imageHeadMax {
		return nil, h, fmt.Errorf("%w: a header of %d bytes", ErrDamaged, size)
	}
	head := make([]byte, size)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, h, cut(err)
	}
	if crc32.Checksum(head, castagnoli) != binary.LittleEndian.Uint32(b[12:]) {
		return nil, h, fmt.Errorf("%w: wrong checksum of the header", ErrDamaged)
	}
	if err := json.Unmarshal(head, &h); err != nil {
		return nil, h, fmt.Errorf("%w: header: %w", ErrDamaged, err)
	}
	if h.Format != imageFormat {
		return nil, h, fmt.Errorf("image of format %d: %w", h.Format, ErrNewer)
	}
	return &imageReader{r: r}, h, nil
}

func cut(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: it is cut short", ErrDamaged)
	}
	return err
}

func (r *imageReader) Read(p []byte) (int, error) {
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

func (r *imageReader) next() error {
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
	if size > imageChunk {
		return fmt.Errorf("%w: a chunk of %d bytes at %d", ErrDamaged, size, r.n)
	}
	if r.buf == nil {
		r.buf = make([]byte, imageChunk)
	}
	if _, err := io.ReadFull(r.r, r.buf[:size]); err != nil {
		return cut(err)
	}
	r.crc = crc32.Update(r.crc, castagnoli, r.buf[:size])
	if r.crc != sum {
		return fmt.Errorf("%w: wrong checksum at byte %d", ErrDamaged, r.n)
	}
	r.n += uint64(size)
	r.chunk = r.buf[:size]
	return nil
}

// bodyLength is what the end of an image file of the given size says.
func bodyLength(f io.ReaderAt, size int64) (int64, error) {
	if size < imageTrailer {
		return 0, fmt.Errorf("%w: it is cut short", ErrDamaged)
	}
	var end [imageTrailer]byte
	if _, err := f.ReadAt(end[:], size-imageTrailer); err != nil {
		return 0, err
	}
	n := binary.LittleEndian.Uint64(end[8:])
	if binary.LittleEndian.Uint32(end[:]) != 0 || n > uint64(size) {
		return 0, fmt.Errorf("%w: it is cut short", ErrDamaged)
	}
	return int64(n), nil
}
