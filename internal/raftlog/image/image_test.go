package image

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"testing"

	"pgregory.net/rapid"
)

func TestImageRoundTrip(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		parts := rapid.SliceOfN(rapid.IntRange(0, 3*ChunkSize/2), 0, 4).Draw(r, "parts")
		var file, body bytes.Buffer
		w, err := NewWriter(&file, Header{Index: 7, Term: 3, Made: 5})
		if err != nil {
			r.Fatal(err)
		}
		for i, n := range parts {
			p := bytes.Repeat([]byte{byte(i + 1)}, n)
			body.Write(p)
			if k, err := w.Write(p); err != nil || k != n {
				r.Fatal(k, err)
			}
		}
		if w.Length() != int64(body.Len()) {
			r.Fatalf("%d bytes written, and it has %d", body.Len(), w.Length())
		}
		if err := w.Finish(); err != nil {
			r.Fatal(err)
		}
		b := file.Bytes()
		read := func(b []byte) ([]byte, error) {
			ir, h, err := NewReader(bytes.NewReader(b))
			if err != nil {
				return nil, err
			}
			if h.Index != 7 || h.Term != 3 || h.Made != 5 {
				return nil, fmt.Errorf("header %+v", h)
			}
			return io.ReadAll(ir)
		}
		got, err := read(b)
		if err != nil || !bytes.Equal(got, body.Bytes()) {
			r.Fatalf("%v: %d bytes of %d", err, len(got), body.Len())
		}
		if n, err := BodyLength(bytes.NewReader(b), int64(len(b))); err != nil || n != int64(body.Len()) {
			r.Fatalf("length %d, %v", n, err)
		}
		if _, err := read(b[:rapid.IntRange(0, len(b)-1).Draw(r, "cut")]); !errors.Is(err, ErrDamaged) {
			r.Fatalf("cut: %v", err)
		}
		bad := bytes.Clone(b)
		where := rapid.OneOf(rapid.IntRange(0, len(b)-1), rapid.IntRange(0, min(len(b)-1, 300)), rapid.IntRange(len(b)-trailer, len(b)-1)).Draw(r, "where")
		bad[where] ^= 1 << rapid.IntRange(0, 7).Draw(r, "bit")
		if got, err := read(bad); err == nil {
			r.Fatalf("a changed bit at %d of %d went unnoticed (%d bytes)", where, len(b), len(got))
		}
	})
}
