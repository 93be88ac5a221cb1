package safetar

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/musterhq/muster/internal/sandbox/sandboxtest"
)

// tarOf is a tar of members.
func tarOf(t testing.TB, members ...sandboxtest.Member) []byte {
	t.Helper()
	return sandboxtest.TarOf(t, members...)
}

// file is a member that is a file, and headed one of any kind.
var file = sandboxtest.File

func headed(h tar.Header) sandboxtest.Member { return sandboxtest.Member{Header: h} }

// all reads a whole tar, as one line for each entry.
func all(r io.Reader) (lines []string, err error) {
	t := NewReader(r)
	for {
		e, err := t.Next()
		if err == io.EOF {
			return lines, nil
		}
		if err != nil {
			return lines, err
		}
		content, err := io.ReadAll(t)
		lines = append(lines, fmt.Sprintf("%c %s %s %q", e.Typeflag, e.Path, e.Target, content))
		if err != nil {
			return lines, err
		}
	}
}

// patched is a tar with other bytes at a place of its first header, and the sum of that.
func patched(b []byte, at int, with string) []byte {
	b = slices.Clone(b)
	copy(b[at:], with)
	copy(b[148:], "        ")
	sum := 0
	for _, c := range b[:blockSize] {
		sum += int(c)
	}
	copy(b[148:], fmt.Sprintf("%06o\x00 ", sum))
	return b
}

func TestEntries(t *testing.T) {
	one := tarOf(t, file("one", "1"))
	global := tarOf(t, headed(tar.Header{Typeflag: tar.TypeXGlobalHeader, Name: "g", PAXRecords: map[string]string{"comment": "x"}}), file("one", "1"))
	for name, c := range map[string]struct {
		tar  []byte
		want []string
	}{
		"clean":            {tarOf(t, file("./a//./b", "x")), []string{`0 a/b  "x"`}},
		"the top":          {tarOf(t, headed(tar.Header{Typeflag: tar.TypeDir, Name: "./"})), []string{`5   ""`}},
		"hard link":        {tarOf(t, headed(tar.Header{Typeflag: tar.TypeLink, Name: "h", Linkname: "./a/b"})), []string{`1 h a/b ""`}},
		"hard link out":    {tarOf(t, headed(tar.Header{Typeflag: tar.TypeLink, Name: "h", Linkname: "a/../../b"})), []string{`1 h  ""`}},
		"hard link to /":   {tarOf(t, headed(tar.Header{Typeflag: tar.TypeLink, Name: "h", Linkname: "/etc/passwd"})), []string{`1 h  ""`}},
		"directory by /":   {patched(one, 0, "d/\x00"), []string{`5 d  "1"`}},
		"contiguous":       {patched(one, 156, "7"), []string{`0 one  "1"`}},
		"old":              {patched(one, 156, "\x00"), []string{`0 one  "1"`}},
		"label":            {append(patched(tarOf(t, file("label", ""))[:blockSize], 156, "V"), one...), []string{`0 one  "1"`}},
		"global":           {global, []string{`0 one  "1"`}},
		"device":           {tarOf(t, headed(tar.Header{Typeflag: tar.TypeChar, Name: "null"})), []string{`3 null  ""`}},
		"link with a size": {patched(tarOf(t, headed(tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "x"})), 124, "00000000100"), []string{`2 l  ""`}},
		"empty":            {nil, nil},
		"without an end":   {one[:2*blockSize], []string{`0 one  "1"`}},
		"half an end":      {one[:3*blockSize], []string{`0 one  "1"`}},
		"more behind":      {append(slices.Clone(one), "garbage"...), []string{`0 one  "1"`}},
	} {
		if got, err := all(bytes.NewReader(c.tar)); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

func TestDamage(t *testing.T) {
	one := tarOf(t, file("one", "1"))
	long := tarOf(t, file(strings.Repeat("x", 200), ""))
	for name, c := range map[string]struct {
		tar     []byte
		want    string
		outside bool
	}{
		"up":               {tarOf(t, file("../x", "")), `the tar's entry "../x" leads out of the directory`, true},
		"up inside":        {tarOf(t, file("a/../x", "")), `the tar's entry "a/../x" leads out of the directory`, true},
		"absolute":         {tarOf(t, file("/x", "")), `the tar's entry "/x" has an absolute name`, true},
		"no name":          {tarOf(t, file(".", "")), `the tar's entry "." has no name`, false},
		"too long":         {tarOf(t, file(strings.Repeat("x/", 3000)+"x", "")), "longer than the system takes", false},
		"sparse of old":    {patched(patched(one, 156, "S"), 257, "ustar  \x00"), "sparse", false},
		"none":             {bytes.Repeat([]byte("none"), 1000), "the tar is none, or is damaged: ", false},
		"damaged later":    {append(slices.Clone(one[:2*blockSize]), bytes.Repeat([]byte("none"), 1000)...), `, at or after its entry "one"`, false},
		"cut":              {tarOf(t, file("one", strings.Repeat("1", 10_000)))[:5000], `the tar's entry "one" is cut short`, false},
		"cut header":       {one[:300], "the tar is cut short", false},
		"cut second":       {append(slices.Clone(one[:2*blockSize]), one[:300]...), `the tar is cut short, at or after its entry "one"`, false},
		"no entry":         {long[:2*blockSize], "the tar ends where an entry should come", false},
		"no entry, zeros":  {append(slices.Clone(long[:2*blockSize]), make([]byte, 2*blockSize)...), "the tar ends where an entry should come", false},
		"huge records":     {append(patched(long, 124, "07777777777"), make([]byte, 2<<20)...), "the tar is none, or is damaged: header field too long", false},
		"negative size":    {patched(one, 124, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xf0"), "the tar is none, or is damaged: ", false},
		"mode is no digit": {patched(one, 100, "888"), "the tar is none, or is damaged: ", false},
	} {
		_, err := all(bytes.NewReader(c.tar))
		wrong, ok := err.(Error)
		if !ok || !strings.Contains(err.Error(), c.want) || wrong.Outside != c.outside {
			t.Errorf("%s: %#v", name, err)
		}
	}
}

// TestSparse: what pax says of holes is refused, also where archive/tar does not understand it.
func TestSparse(t *testing.T) {
	for _, record := range []string{"22 GNU.sparse.major=1\n", "25 GNU.sparse.realsize=9\n"} {
		if want := fmt.Sprint(len(record)); record[:2] != want {
			t.Fatalf("%q has %s bytes", record, want)
		}
		b := patched(tarOf(t, file("x", ""))[:blockSize], 156, "x")
		b = patched(b, 124, fmt.Sprintf("%011o", len(record)))
		b = append(append(b, record...), make([]byte, blockSize-len(record))...)
		_, err := all(bytes.NewReader(append(b, tarOf(t, file("one", "1"))...)))
		if err == nil || !strings.Contains(err.Error(), `"one" is a sparse file`) {
			t.Errorf("%q: %v", record, err)
		}
	}
}

// TestReaderBelowFails: its error comes as it is, and is not taken for damage.
func TestReaderBelowFails(t *testing.T) {
	b := tarOf(t, file("one", strings.Repeat("1", 10_000)), file("two", "2"))
	for _, gone := range []error{errors.New("gone"), io.ErrUnexpectedEOF} {
		for _, at := range []int{0, 300, 512, 600, 5000, 10_512, 10_800, 11_000} {
			_, err := all(io.MultiReader(bytes.NewReader(b[:at]), iotest.ErrReader(gone)))
			if err != gone {
				t.Errorf("after %d bytes: %v", at, err)
			}
		}
	}
}

func TestDirectories(t *testing.T) {
	var got []string
	failed := errors.New("failed")
	d := &Directories{Set: func(name string, mode uint32, modified time.Time) error {
		got = append(got, fmt.Sprintf("%s %o %d", name, mode, modified.Unix()))
		if name == "b" {
			return failed
		}
		return nil
	}}
	add := func(name string, mode, when int64) {
		d.Add(name, &Entry{Header: &tar.Header{Mode: mode, ModTime: time.Unix(when, 0)}})
	}
	for n, name := range []string{"a/b", "a", "b", "a/b/c", "a"} {
		add(name, 0o100700+int64(n), int64(n))
	}
	if err := d.Finish(); err != failed || strings.Join(got, ", ") != "b 702 2, a/b/c 703 3, a/b 700 0, a 701 1, a 704 4" {
		t.Errorf("%q, %v", got, err)
	}
	// A tar of any number of directories takes a bounded amount of memory.
	got, d.err = nil, nil
	name := strings.Repeat("x", 1000)
	for range 3 * maxKept / len(name) {
		add(name, 0o700, 0)
		if d.size > maxKept || len(d.kept) > maxKept/len(name) {
			t.Fatalf("%d bytes of %d directories are kept", d.size, len(d.kept))
		}
	}
	if err := d.Finish(); err != nil || len(got) != 3*maxKept/len(name) || d.size != 0 {
		t.Errorf("%d were set, %d bytes are kept, %v", len(got), d.size, err)
	}
}

// FuzzNext: whatever comes, reading ends, is the same in pieces as at once, and gives no name that
// leads out.
func FuzzNext(f *testing.F) {
	f.Add(tarOf(f, file("a/b", "x"), headed(tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: ".."}), file("l/x", "x"), headed(tar.Header{Typeflag: tar.TypeLink, Name: "h", Linkname: "a/b"})))
	f.Add(tarOf(f, file(strings.Repeat("long/", 60)+"x", "x"), file("../x", "y")))
	f.Add(tarOf(f, headed(tar.Header{Typeflag: tar.TypeReg, Name: "gnu" + strings.Repeat("x", 200), Format: tar.FormatGNU, Uid: 1 << 40})))
	f.Add(tarOf(f, headed(tar.Header{Typeflag: tar.TypeXGlobalHeader, Name: "g", PAXRecords: map[string]string{"comment": "x"}}), file("d", "")))
	f.Fuzz(func(t *testing.T, b []byte) {
		one, err := all(bytes.NewReader(b))
		two, again := all(iotest.OneByteReader(bytes.NewReader(b)))
		if (err == nil) != (again == nil) || err != nil && err.Error() != again.Error() || !slices.Equal(one, two) {
			t.Errorf("at once %q, %v; in pieces %q, %v", one, err, two, again)
		}
		for r := NewReader(bytes.NewReader(b)); ; {
			e, err := r.Next()
			if err != nil {
				if _, ok := err.(Error); !ok && err != io.EOF {
					t.Errorf("%v is not the tar's", err)
				}
				return
			}
			for _, name := range []string{e.Path, e.Target} {
				if name != "" && (!filepath.IsLocal(name) || filepath.Clean(name) != name) {
					t.Errorf("%q became %q", e.Name, name)
				}
			}
		}
	})
}

// FuzzBelow: a clean name never leads up.
func FuzzBelow(f *testing.F) {
	for _, s := range []string{"a/b", "../x", "/x", "a//./b/", "..a/..", strings.Repeat("x/", 3000)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		name, err := below(s)
		if err == nil && name != "" && (!filepath.IsLocal(name) || filepath.Clean(name) != name || filepath.Clean(s) != name) {
			t.Errorf("%q became %q", s, name)
		}
	})
}
