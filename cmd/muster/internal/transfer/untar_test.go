package transfer

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/musterhq/muster/cmd/muster/internal/clitest"
)

func TestUntarStaysInside(t *testing.T) {
	outside := t.TempDir()
	secret := filepath.Join(outside, "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	reg := func(name string) tar.Header {
		return tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o4777, Uname: "x"}
	}
	link := func(name, to string) tar.Header {
		return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}
	}
	for name, tt := range map[string]struct {
		archive []tar.Header
		err     string
		skipped string
	}{
		"climbs":                {[]tar.Header{reg("../x")}, `the archive has the name "../x", which leaves the folder`, ""},
		"absolute":              {[]tar.Header{reg("/etc/x")}, `the archive has the name "/etc/x", which leaves the folder`, ""},
		"climbs inside":         {[]tar.Header{reg("a/../../x")}, `the archive has the name "a/../../x", which leaves the folder`, ""},
		"link out":              {[]tar.Header{link("l", outside)}, "", "l is left out: it is a link to"},
		"relative link out":     {[]tar.Header{link("a/l", "../../x")}, "", "a/l is left out: it is a link to"},
		"hard link out":         {[]tar.Header{{Typeflag: tar.TypeLink, Name: "h", Linkname: "../secret"}}, "", "h is left out: it is a link to"},
		"through two links":     {[]tar.Header{link("a", "b/.."), link("b", "."), reg("a/x")}, "", "a is left out: it is a link to b/.."},
		"through a link":        {[]tar.Header{link("a", "b"), reg("b/y"), reg("a/x")}, `"a" is a symbolic link here`, ""},
		"up behind a name":      {[]tar.Header{link("d/up", ".."), link("d/out", "up/../../etc")}, "", "d/out is left out: it is a link to"},
		"device":                {[]tar.Header{{Typeflag: tar.TypeBlock, Name: "d"}}, "", "d is left out: it is neither file, directory nor link"},
		"file where a link was": {[]tar.Header{link("l", "t"), reg("l")}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			parent := t.TempDir()
			dir := filepath.Join(parent, "in")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			root, err := os.OpenRoot(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = root.Close() }()
			u := &untar{root: root}
			err = u.unpack(strings.NewReader(string(clitest.Tar(t, tt.archive...))))
			switch {
			case tt.err == "*":
			case tt.err == "" && err != nil, tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)):
				t.Errorf("%v, want %s", err, tt.err)
			}
			if got := strings.Join(u.skipped, "\n"); !strings.HasPrefix(got, tt.skipped) || (got == "") != (tt.skipped == "") {
				t.Errorf("skipped %q", got)
			}
			entries, err := os.ReadDir(parent)
			if err != nil || len(entries) != 1 {
				t.Errorf("outside: %v, %v", entries, err)
			}
			if info, err := os.Stat(filepath.Join(dir, "l")); err == nil && info.Mode() != 0o777 {
				t.Errorf("mode %v", info.Mode())
			}
		})
	}
	if b, err := os.ReadFile(secret); string(b) != "secret" {
		t.Errorf("%q, %v", b, err)
	}
}

// S-H4: a link that an earlier copy has left is not walked by the next one, whose archive has a
// directory of that name.
func TestCopyTwiceThroughALink(t *testing.T) {
	s := withJob(t, 1)
	home := t.TempDir()
	clitest.WriteFiles(t, home, map[string]string{".ssh/authorized_keys": "mine", "work/": ""})
	clitest.WriteFiles(t, s.Inside.Root, map[string]string{"data/l": "->../.ssh", "data/k": "->../work/../.ssh"})
	s.Muster(nil, "cp", "web:/data", home).Check(t, 1, "", "(muster: web:/data: data/[lk] is left out: [^\n]*\n){2}muster: the copy is not complete: left out of it: 2\n")
	// As an older version left it.
	for _, name := range []string{"data/l", "data/m"} {
		if err := os.Symlink("../.ssh", filepath.Join(home, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.RemoveAll(filepath.Join(s.Inside.Root, "data")); err != nil {
		t.Fatal(err)
	}
	clitest.WriteFiles(t, s.Inside.Root, map[string]string{"data/l/authorized_keys": "EVIL"})
	s.Muster(nil, "cp", "web:/data", home).Check(t, 1, "", "muster: web:/data: data/l: .data/l. is a symbolic link here, and nothing is written through links; .*\n")
	// Nor is the copy's own name, if it is a link that the user did not write.
	if err := os.Symlink(".ssh", filepath.Join(home, "d2")); err != nil {
		t.Fatal(err)
	}
	clitest.WriteFiles(t, s.Inside.Root, map[string]string{"d2/authorized_keys": "EVIL"})
	for _, source := range []string{"web:/d2", "web:/d2/"} {
		if r := s.Muster(nil, "cp", source, home); r.Code == 0 || !strings.Contains(r.Stderr, "nothing is written through links") {
			t.Errorf("%s: %+v", source, r)
		}
	}
	if b, err := os.ReadFile(filepath.Join(home, ".ssh/authorized_keys")); string(b) != "mine" {
		t.Errorf("%q, %v", b, err)
	}
}

// S-M8: outputs are written below their own path only, and twice into one folder is as safe as
// once.
func TestOutputsStayBelowTheirPath(t *testing.T) {
	dir := t.TempDir()
	clitest.WriteFiles(t, dir, map[string]string{"src/Makefile": "mine"})
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	for _, archive := range [][]tar.Header{
		{{Typeflag: tar.TypeSymlink, Name: "out/l", Linkname: "../src"}, {Typeflag: tar.TypeReg, Name: "out/a"}},
		{{Typeflag: tar.TypeReg, Name: "out/l/Makefile", Uname: "EVIL"}},
		{{Typeflag: tar.TypeReg, Name: "src/Makefile", Uname: "EVIL"}},
		{{Typeflag: tar.TypeLink, Name: "out/h", Linkname: "src/Makefile"}},
		{{Typeflag: tar.TypeDir, Name: "outside", Mode: 0o700}},
	} {
		_ = (&untar{root: root, top: "out"}).unpack(bytes.NewReader(clitest.Tar(t, archive...)))
	}
	if got, want := clitest.FilesIn(t, dir), "out/ out/a= out/l/ out/l/Makefile=EVIL src/ src/Makefile=mine"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// FuzzUntar unpacks two archives of any entries over each other. Nothing outside of the copy
// changes by that, nor by writing to everything in the copy afterwards.
func FuzzUntar(f *testing.F) {
	f.Add([]byte("\x01\x00\x02\x00\x03\x01"), []byte("\x00\x04\x00"))
	f.Add([]byte("\x02\x01\x05\x02\x00\x06\x00\x07\x00"), []byte("\x03\x02\x01\x01\x08\x00"))
	names := []string{"c", "c/a", "c/a/b", "c/a/b/d", "c/l", "c/l/x", "o", "c/../o", "c/a/../l"}
	targets := []string{".", "..", "../..", "a", "a/..", "../o", "l/../../o", "../a/b", "/etc", "c/a", "../../c/l", "./l"}
	kinds := []byte{tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeLink}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		home := t.TempDir()
		clitest.WriteFiles(t, home, map[string]string{"in/o": "mine", "in/other/o": "mine", "o": "mine", "c/": ""})
		outside := func() string {
			var all strings.Builder
			err := filepath.WalkDir(home, func(p string, d fs.DirEntry, err error) error {
				if err != nil {
					return err
				}
				if p == filepath.Join(home, "in/c") {
					if d.IsDir() {
						return filepath.SkipDir
					}
					return nil
				}
				info, err := d.Info()
				if err != nil {
					return err
				}
				content := []byte(nil)
				if info.Mode().IsRegular() {
					content, err = os.ReadFile(p)
				}
				fmt.Fprintf(&all, "%s %v %q\n", p, info.Mode(), content)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			return all.String()
		}
		before := outside()
		root, err := os.OpenRoot(filepath.Join(home, "in"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = root.Close() }()
		for _, ops := range [][]byte{first, second} {
			var headers []tar.Header
			for ; len(ops) >= 3 && len(headers) < 20; ops = ops[3:] {
				headers = append(headers, tar.Header{
					Typeflag: kinds[int(ops[0])%len(kinds)], Name: names[int(ops[1])%len(names)], Linkname: targets[int(ops[2])%len(targets)], Mode: 0o750,
				})
				if h := &headers[len(headers)-1]; h.Typeflag == tar.TypeLink {
					h.Linkname = names[int(ops[2])%len(names)]
				} else if h.Typeflag != tar.TypeSymlink {
					h.Linkname = ""
				}
			}
			_ = (&untar{root: root, top: "c"}).unpack(bytes.NewReader(clitest.Tar(t, headers...)))
		}
		_ = filepath.WalkDir(filepath.Join(home, "in/c"), func(p string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				_ = os.WriteFile(p, []byte("EVIL"), 0o600)
				_ = os.WriteFile(filepath.Join(p, "o"), []byte("EVIL"), 0o600)
			}
			return nil
		})
		if after := outside(); after != before {
			t.Errorf("outside of the copy was\n%s\nand is\n%s", before, after)
		}
	})
}
