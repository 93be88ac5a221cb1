package clitest

import (
	"archive/tar"
	"bytes"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// WriteFiles makes files below root. A name with / at its end is a directory, and a value that
// begins with -> is a link to what follows. Directories above a name are made as well.
func WriteFiles(t *testing.T, root string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		at := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		// Links may lead anywhere, also out of the folder: that is what tests are about.
		if to, ok := strings.CutPrefix(content, "->"); ok {
			err = os.Symlink(to, at)
		} else if strings.HasSuffix(name, "/") {
			err = os.MkdirAll(at, 0o755)
		} else {
			err = os.WriteFile(at, []byte(content), 0o640)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// FilesIn lists what is below root, in the form that WriteFiles takes, in the order of the names.
// One text is easier to compare, and to read when it differs.
func FilesIn(t *testing.T, root string) string {
	t.Helper()
	var lines []string
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == root {
			return err
		}
		// Only names below the folder are listed: where it is differs from test to test.
		rel, _ := filepath.Rel(root, p)
		switch {
		case d.IsDir():
			lines = append(lines, rel+"/")
		case d.Type()&fs.ModeSymlink != 0:
			to, _ := os.Readlink(p)
			lines = append(lines, rel+"->"+to)
		default:
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			lines = append(lines, rel+"="+string(b))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(lines, " ")
}

// Tar packs entries as they are, with names that a packer would refuse. The content of a file is
// its Uname, for short.
func Tar(t *testing.T, headers ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := range headers {
		h := headers[i]
		content := ""
		if h.Typeflag == tar.TypeReg {
			content = h.Uname // its content, for short
			h.Size, h.Uname = int64(len(content)), ""
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
