package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"archive/tar"
)

func TestImage(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	if err := os.WriteFile(program, []byte("program"), 0o600); err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1e9, 0)
	var before []byte
	for _, name := range []string{"one.tar", "two.tar"} {
		out := filepath.Join(dir, name)
		if err := write("arm64", "muster:1", at, out, []string{"/usr/bin/muster=" + program + ":0755", "/etc/muster/muster.yaml=" + program}); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		if before != nil && !bytes.Equal(before, b) {
			t.Error("the same files made another image")
		}
		before = b
	}
	image, err := tarball.ImageFromPath(filepath.Join(dir, "one.tar"), nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := image.ConfigFile()
	if err != nil || c.Architecture != "arm64" || c.Config.Entrypoint[0] != "/usr/bin/muster" || !c.Created.Equal(at) {
		t.Errorf("%+v, %v", c, err)
	}
	modes := map[string]int64{}
	for r := tar.NewReader(mutate.Extract(image)); ; {
		h, err := r.Next()
		if err != nil {
			break
		}
		modes[h.Name] = h.Mode
	}
	if modes["usr/bin/muster"] != 0o755 || modes["etc/muster/muster.yaml"] != 0o644 || modes["var/lib/muster"] != 0o755 {
		t.Errorf("%v", modes)
	}
	for _, wrong := range [][]string{{"usr/bin/muster=" + program}, {"/a/../b=" + program}, {"/a=" + program + ":9"}, {"/a=/nowhere"}, {}} {
		if err := write("amd64", "muster:1", at, filepath.Join(dir, "x"), wrong); err == nil {
			t.Errorf("%q was taken", wrong)
		}
	}
}
