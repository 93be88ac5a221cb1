package files

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
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

func (s *bytesSource) take(limit int64) ([]byte, error) {
	n := min(limit, s.most, int64(len(s.b)))
	b := s.b[:n]
	s.b = s.b[n:]
	return b, nil
}

// readAll reads a tar with our reader.
func readTar(b []byte, most int64) (entries []tarEntry, contents []string, err error) {
	r := tarReader{from: &bytesSource{b, most}}
	for {
		e, err := r.next()
		if e == nil || err != nil {
			return entries, contents, err
		}
		var content []byte
		for {
			some, err := r.content(e.name)
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
		e := tarEntry{
			kind: rapid.SampledFrom([]byte{tarFile, tarLink, tarDirectory, tarPipe, tarHardLink}).Draw(rt, "kind"),
			name: names.Draw(rt, "name"), mode: uint32(rapid.Uint16Range(0, 0o7777).Draw(rt, "mode")),
			uid: number.Draw(rt, "uid"), gid: number.Draw(rt, "gid"), seconds: rapid.Int64Range(-1<<34, 1<<40).Draw(rt, "seconds"), user: "user", group: "group",
		}
		switch e.kind {
		case tarLink, tarHardLink:
			e.link = names.Draw(rt, "link")
		case tarDirectory:
			e.name += "/"
		case tarFile:
			e.size = rapid.Int64Range(0, 2000).Draw(rt, "size")
		}
		content := string(sandboxtest.Written(0, e.size))
		b := append(append(appendTarHeader(nil, &e), content...), make([]byte, -e.size&(tarBlockSize-1)+2*tarBlockSize)...)
		h, err := tar.NewReader(bytes.NewReader(b)).Next()
		if err != nil {
			rt.Fatal(err)
		}
		if h.Name != e.name || h.Linkname != e.link || h.Mode != int64(e.mode) || int64(h.Uid) != e.uid || int64(h.Gid) != e.gid || h.Size != e.size ||
			h.ModTime.Unix() != e.seconds || h.Typeflag != e.kind || h.Uname != "user" || h.Gname != "group" {
			rt.Fatalf("archive/tar reads %+v of %+v", h, e)
		}
		got, contents, err := readTar(b, rapid.Int64Range(1, 5000).Draw(rt, "piece"))
		if err != nil || len(got) != 1 || got[0] != e || contents[0] != content {
			rt.Fatalf("read back %+v of %+v, %v", got, e, err)
		}
		h.ModTime = time.Unix(e.seconds, rapid.Int64Range(0, 999_999_999).Draw(rt, "nanoseconds"))
		h.Format = rapid.SampledFrom([]tar.Format{tar.FormatPAX, tar.FormatGNU}).Draw(rt, "format")
		h.PAXRecords = nil
		if h.Format == tar.FormatGNU {
			h.ModTime = h.ModTime.Truncate(time.Second)
		}
		theirs := sandboxtest.TarOf(t, sandboxtest.Member{Header: *h, Content: content})
		got, _, err = readTar(theirs, 512)
		if err != nil || len(got) != 1 || got[0].name != e.name || got[0].link != e.link || got[0].uid != e.uid || got[0].gid != e.gid || got[0].size != e.size ||
			got[0].kind != e.kind || got[0].seconds != h.ModTime.Unix() || got[0].nanoseconds != int64(h.ModTime.Nanosecond()) {
			rt.Fatalf("read %+v of archive/tar's %+v, %v", got, h, err)
		}
	})
}

// FuzzTar: whatever comes, reading ends, in pieces as at once, and unpacking leaves what is beside alone.
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
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, "to"), 0o755); err != nil {
			t.Fatal(err)
		}
		u := &unpacker{from: tarReader{from: &bytesSource{b, 1 << 20}}, top: sandboxtest.OpenDir(t, filepath.Join(dir, "to")), dir: -1, who: whoever}
		u.top, _ = syscall.Dup(u.top)
		_ = u.run()
		u.close()
		entries, err := os.ReadDir(dir)
		if err != nil || len(entries) != 1 {
			t.Errorf("beside: %v, %v", entries, err)
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
			if strings.ContainsRune("\x00567123", rune(e.kind)) || e.kind == tarFile {
				content, err := io.ReadAll(r)
				if err != nil {
					return
				}
				if h.Name != e.name || string(content) != contents[n] {
					t.Fatalf("entry %d is %q with %q, and %q with %q by archive/tar", n, e.name, contents[n], h.Name, content)
				}
			}
		}
	})
}
