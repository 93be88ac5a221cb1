package ustar

import (
	"archive/tar"
	"bytes"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster/internal/sandbox/sandboxtest"
	"pgregory.net/rapid"
)

// bytesSource gives a tar in pieces.
type bytesSource struct {
	b    []byte
	most int64
}

func (s *bytesSource) Take(limit int64) ([]byte, error) {
	n := min(limit, s.most, int64(len(s.b)))
	b := s.b[:n]
	s.b = s.b[n:]
	return b, nil
}

// readAll reads a tar with our reader.
func readTar(b []byte, most int64) (entries []Entry, contents []string, err error) {
	r := NewReader(&bytesSource{b, most})
	for {
		e, err := r.Next()
		if e == nil || err != nil {
			return entries, contents, err
		}
		var content []byte
		for {
			some, err := r.Content(e.Name)
			if err != nil {
				return entries, contents, err
			}
			if len(some) == 0 {
				break
			}
			content = append(content, some...)
		}
		entries, contents = append(entries, *e), append(contents, string(content))
	}
}

// TestTarHeaders: archive/tar reads every header of ours as it was meant, and we read its own.
func TestTarHeaders(t *testing.T) {
	names := rapid.StringMatching(`[a-z/=é ]{0,20}([a-z]{1,90}/){0,4}[a-z]{1,120}`).Filter(func(s string) bool { return s[0] != '/' })
	number := rapid.OneOf(rapid.Int64Range(0, 1<<22), rapid.Int64Range(0, 1<<40))
	rapid.Check(t, func(rt *rapid.T) {
		e := Entry{
			Kind: rapid.SampledFrom([]byte{File, Link, Directory, Pipe, HardLink}).Draw(rt, "kind"),
			Name: names.Draw(rt, "name"), Mode: uint32(rapid.Uint16Range(0, 0o7777).Draw(rt, "mode")),
			UID: number.Draw(rt, "uid"), GID: number.Draw(rt, "gid"), Seconds: rapid.Int64Range(-1<<34, 1<<40).Draw(rt, "seconds"), User: "user", Group: "group",
		}
		switch e.Kind {
		case Link, HardLink:
			e.Target = names.Draw(rt, "link")
		case Directory:
			e.Name += "/"
		case File:
			e.Size = rapid.Int64Range(0, 2000).Draw(rt, "size")
		}
		content := string(sandboxtest.Written(0, e.Size))
		b := append(append(AppendHeader(nil, &e), content...), make([]byte, -e.Size&(BlockSize-1)+2*BlockSize)...)
		h, err := tar.NewReader(bytes.NewReader(b)).Next()
		if err != nil {
			rt.Fatal(err)
		}
		if h.Name != e.Name || h.Linkname != e.Target || h.Mode != int64(e.Mode) || int64(h.Uid) != e.UID || int64(h.Gid) != e.GID || h.Size != e.Size ||
			h.ModTime.Unix() != e.Seconds || h.Typeflag != e.Kind || h.Uname != "user" || h.Gname != "group" {
			rt.Fatalf("archive/tar reads %+v of %+v", h, e)
		}
		got, contents, err := readTar(b, rapid.Int64Range(1, 5000).Draw(rt, "piece"))
		if err != nil || len(got) != 1 || got[0] != e || contents[0] != content {
			rt.Fatalf("read back %+v of %+v, %v", got, e, err)
		}
		h.ModTime = time.Unix(e.Seconds, rapid.Int64Range(0, 999_999_999).Draw(rt, "nanoseconds"))
		h.Format = rapid.SampledFrom([]tar.Format{tar.FormatPAX, tar.FormatGNU}).Draw(rt, "format")
		h.PAXRecords = nil
		if h.Format == tar.FormatGNU {
			h.ModTime = h.ModTime.Truncate(time.Second)
		}
		theirs := sandboxtest.TarOf(t, sandboxtest.Member{Header: *h, Content: content})
		got, _, err = readTar(theirs, 512)
		if err != nil || len(got) != 1 || got[0].Name != e.Name || got[0].Target != e.Target || got[0].UID != e.UID || got[0].GID != e.GID || got[0].Size != e.Size ||
			got[0].Kind != e.Kind || got[0].Seconds != h.ModTime.Unix() || got[0].Nanoseconds != int64(h.ModTime.Nanosecond()) {
			rt.Fatalf("read %+v of archive/tar's %+v, %v", got, h, err)
		}
	})
}

// FuzzTarLikeTheirs: what archive/tar and we both take has the same names and contents.
func FuzzTarLikeTheirs(f *testing.F) {
	f.Add(sandboxtest.TarOf(f, sandboxtest.File("a/b", "x"), sandboxtest.Link(tar.TypeSymlink, "l", ".."), sandboxtest.Member{Header: tar.Header{Typeflag: tar.TypeDir, Name: "d/"}}))
	f.Add(sandboxtest.TarOf(f, sandboxtest.File(strings.Repeat("long/", 60)+"x", "x")))
	f.Fuzz(func(t *testing.T, b []byte) {
		ours, contents, err := readTar(b, 1<<20)
		if err != nil {
			return
		}
		r := tar.NewReader(bytes.NewReader(b))
		for n, e := range ours {
			h, err := r.Next()
			if err != nil {
				return // it is stricter, and knows sparse files
			}
			if strings.ContainsRune("\x00567123", rune(e.Kind)) || e.Kind == File {
				content, err := io.ReadAll(r)
				if err != nil {
					return
				}
				if h.Name != e.Name || string(content) != contents[n] {
					t.Fatalf("entry %d is %q with %q, and %q with %q by archive/tar", n, e.Name, contents[n], h.Name, content)
				}
			}
		}
	})
}

// FuzzTar: whatever comes, reading ends, in pieces as at once.
func FuzzTar(f *testing.F) {
	f.Add(sandboxtest.TarOf(f, sandboxtest.File("a/b", "x"), sandboxtest.Link(tar.TypeSymlink, "l", ".."), sandboxtest.File("l/x", "x"), sandboxtest.Link(tar.TypeLink, "h", "a/b")))
	f.Add(sandboxtest.TarOf(f, sandboxtest.File(strings.Repeat("long/", 60)+"x", "x"), sandboxtest.File("../x", "y")))
	f.Add(sandboxtest.TarOf(f, sandboxtest.Member{Header: tar.Header{Typeflag: tar.TypeReg, Name: "gnu" + strings.Repeat("x", 200), Format: tar.FormatGNU, Uid: 1 << 40}, Content: "x"}))
	f.Fuzz(func(t *testing.T, b []byte) {
		one, contents, err := readTar(b, 1<<20)
		two, again, err2 := readTar(b, 7)
		if (err == nil) != (err2 == nil) || !slices.Equal(one, two) || !slices.Equal(contents, again) {
			t.Errorf("at once %v, %v; in pieces %v, %v", one, err, two, err2)
		}
	})
}
