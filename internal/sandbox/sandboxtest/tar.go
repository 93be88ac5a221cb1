package sandboxtest

import (
	"archive/tar"
	"bytes"
	"io"
	"testing"
)

// Member is an entry of a tar that archive/tar writes. Its size is that of Content.
type Member struct {
	tar.Header
	Content string
}

// File is a regular file.
func File(name, content string) Member {
	return Member{Header: tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644}, Content: content}
}

// Link is a link of a kind of archive/tar.
func Link(kind byte, name, target string) Member {
	return Member{Header: tar.Header{Typeflag: kind, Name: name, Linkname: target, Mode: 0o777}}
}

// TarOf is a tar of these members.
func TarOf(t testing.TB, members ...Member) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, m := range members {
		m.Size = int64(len(m.Content))
		if err := w.WriteHeader(&m.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, m.Content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
