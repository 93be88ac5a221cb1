// Command serverimage writes a container image of the server, as `docker save` does: the two static
// programs, the sample configuration and the licences, and nothing else. The same files make the same
// image. `make packages` calls it.
//
//	go run ./internal/serverimage -arch ARCH -tag NAME:TAG -created SECONDS -out FILE PATH=FILE[:MODE]...
package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func main() {
	arch := flag.String("arch", "", "amd64 or arm64")
	tag := flag.String("tag", "", "name of the image")
	created := flag.Int64("created", 0, "time of the image and its files, seconds since 1970")
	out := flag.String("out", "", "file that is written")
	flag.Parse()
	if err := write(*arch, *tag, time.Unix(*created, 0).UTC(), *out, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "serverimage:", err)
		os.Exit(1)
	}
}

// file is one that the image has.
type file struct {
	path, from string
	mode       int64
}

func parse(args []string) (files []file, err error) {
	for _, a := range args {
		to, from, ok := strings.Cut(a, "=")
		from, mode, given := strings.Cut(from, ":")
		f := file{path: to, from: from, mode: 0o644}
		if given {
			if f.mode, err = strconv.ParseInt(mode, 8, 32); err != nil {
				return nil, fmt.Errorf("%s: mode %q", a, mode)
			}
		}
		if !ok || !path.IsAbs(to) || path.Clean(to) != to {
			return nil, fmt.Errorf("%q: want /PATH=FILE[:MODE]", a)
		}
		files = append(files, f)
	}
	return files, nil
}

func write(arch, tag string, created time.Time, out string, args []string) error {
	files, err := parse(args)
	if err != nil {
		return err
	}
	if arch == "" || out == "" || len(files) == 0 {
		return errors.New("-arch, -out and files are needed")
	}
	ref, err := name.NewTag(tag)
	if err != nil {
		return err
	}
	layer, err := layerOf(files, created)
	if err != nil {
		return err
	}
	opened := tarball.WithCompressionLevel(9)
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layer)), nil }, opened)
	if err != nil {
		return err
	}
	image, err := mutate.AppendLayers(empty.Image, l)
	if err != nil {
		return err
	}
	image, err = mutate.ConfigFile(image, configOf(image, arch, created))
	if err != nil {
		return err
	}
	return tarball.WriteToFile(out, ref, image)
}

// configOf says how the image is run: the server with its configuration, its state in a volume.
func configOf(image v1.Image, arch string, created time.Time) *v1.ConfigFile {
	c, err := image.ConfigFile()
	if err != nil {
		panic(err) // it was made in memory
	}
	c = c.DeepCopy()
	c.OS, c.Architecture, c.Created = "linux", arch, v1.Time{Time: created}
	c.Config = v1.Config{
		Entrypoint: []string{"/usr/bin/muster"}, Cmd: []string{"server", "-c", "/etc/muster/muster.yaml"},
		Env:          []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/var/lib/muster", "TMPDIR=/var/lib/muster"},
		WorkingDir:   "/var/lib/muster",
		Volumes:      map[string]struct{}{"/var/lib/muster": {}},
		ExposedPorts: map[string]struct{}{"4750/tcp": {}},
	}
	return c
}

// layerOf is a tar of the files and the directories above them, in the order of their names.
func layerOf(files []file, created time.Time) ([]byte, error) {
	dirs := map[string]bool{"/var/lib/muster": true}
	for _, f := range files {
		dirs[path.Dir(f.path)] = true
	}
	entries := files
	for d := range dirs {
		for ; d != "/" && !slices.ContainsFunc(entries, func(f file) bool { return f.path == d }); d = path.Dir(d) {
			entries = append(entries, file{path: d, mode: 0o755})
		}
	}
	slices.SortFunc(entries, func(a, b file) int { return strings.Compare(a.path, b.path) })
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range entries {
		h := &tar.Header{Name: strings.TrimPrefix(f.path, "/"), Mode: f.mode, ModTime: created, Typeflag: tar.TypeDir, Format: tar.FormatPAX}
		var content []byte
		if f.from == "" {
			h.Name += "/"
		} else {
			var err error
			if content, err = os.ReadFile(f.from); err != nil {
				return nil, err
			}
			h.Typeflag, h.Size = tar.TypeReg, int64(len(content))
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(content); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), w.Close()
}
