package oci

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
)

// S-H1: what a runtime program says of an image's content was counted as a fault of the node, so that one job with a bad image took one
// node after the other out of service. Whatever is in an image, the node is not to blame, and the image fails at once: one that makes the
// runtime program hang would hold one of the node's few starts at a time, and be tried again for an hour.
func TestBadImageIsNoFaultOfTheNode(t *testing.T) {
	link := func(at, to string) func(string) error {
		return func(layer string) error {
			return errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(layer, at)), 0o755), os.Symlink(to, filepath.Join(layer, at)))
		}
	}
	file := func(at string) func(string) error {
		return func(layer string) error {
			return errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(layer, at)), 0o755), os.WriteFile(filepath.Join(layer, at), nil, 0o644))
		}
	}
	folder := func(at string) func(string) error {
		return func(layer string) error { return os.MkdirAll(filepath.Join(layer, at), 0o755) }
	}
	pipe := func(at string) func(string) error {
		return func(layer string) error {
			return errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(layer, at)), 0o755), unix.Mkfifo(filepath.Join(layer, at), 0o644))
		}
	}
	bad := map[string]func(layer string) error{
		"resolv.conf is a pipe": pipe("etc/resolv.conf"), "the work directory is a pipe": pipe("work"), "proc is a pipe": pipe("proc"),
		"proc is a link": link("proc", "/etc"), "proc is a file": file("proc"), "dev is a link": link("dev", "/etc"), "dev is a file": file("dev"),
		"sys is a link": link("sys", "../../etc"), "etc is a link": link("etc", "/proc/1"), "etc is a file": file("etc"),
		"resolv.conf is a link": link("etc/resolv.conf", "/proc/x/y"), "hosts is a folder": folder("etc/hosts"), "hostname is a link": link("etc/hostname", "/sys/nothing"),
		"passwd is a pipe": pipe("etc/passwd"), "group is a pipe": pipe("etc/group"), "passwd is a link to a terminal": link("etc/passwd", "/dev/ptmx"),
		"passwd is a link to zeros": link("etc/passwd", "../dev/zero"), "group is a link to a link": link("etc/group", "/proc/self/fd/0"),
		"the work directory is a file": file("work"), "the work directory is a link": link("work", "/proc/1/root"), "links in a circle": link("proc", "proc"),
	}
	for _, program := range programs(t) {
		t.Run(program, func(t *testing.T) {
			r := newRuntime(t, program, testParent(t), testBase)
			image := busybox(t, r.IDBase())
			for name, make := range bad {
				layer := "bad-" + filepath.Base(t.TempDir()) + name[:3]
				if err := errors.Join(os.Mkdir(filepath.Join(image.Root, layer), 0o755), make(filepath.Join(image.Root, layer))); err != nil {
					t.Fatal(err)
				}
				// As the image store leaves them: what is owned by nobody of the container would fail for that alone.
				if err := filepath.WalkDir(filepath.Join(image.Root, layer), func(path string, _ fs.DirEntry, err error) error {
					return errors.Join(err, os.Lchown(path, r.IDBase(), r.IDBase()))
				}); err != nil {
					t.Fatal(err)
				}
				dir := t.TempDir()
				if err := makeDirs(dir); err != nil {
					t.Fatal(err)
				}
				c := attempt(dir, "bad-0-1", &contract.Image{Ref: "bad", Root: image.Root, Layers: slices.Concat([]string{layer}, image.Layers)}, "true")
				s, err := r.Start(t.Context(), c)
				var f *muster.Failure
				if err != nil && !errors.As(err, &f) {
					t.Errorf("%s: %v", name, err)
				}
				if err == nil {
					<-s.Done()
					f = s.Result().Failure
				}
				if f != nil && f.Class != muster.FailureUser {
					t.Errorf("%s: the image is not blamed, but %s: %s", name, f.Class, f.Message)
				}
				t.Logf("%s: %v", name, f)
				if err := r.Remove(t.Context(), dir); err != nil {
					t.Error(err)
				}
				if err := os.RemoveAll(filepath.Join(image.Root, layer)); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// What fails on a node where what is known to be good fails too is the node's.
func TestBrokenProgramIsAFaultOfTheNode(t *testing.T) {
	r := newRuntime(t, "", testParent(t), 0)
	dir := t.TempDir()
	if err := makeDirs(dir); err != nil {
		t.Fatal(err)
	}
	broken := *r.program
	broken.path = "/bin/false"
	r.program = &broken
	_, err := r.Start(t.Context(), attempt(dir, "good-0-1", busybox(t, 0), "true"))
	var f *muster.Failure
	if !errors.As(err, &f) || f.Class != muster.FailureNode {
		t.Errorf("%v", err)
	}
}

// Many that fail at once ask one canary, and one that has lived is believed for a while.
func TestOneCanaryForMany(t *testing.T) {
	var c canary
	flown, release := 0, make(chan struct{})
	results := make(chan error)
	for range 8 {
		go func() { results <- c.alive(func() error { flown++; <-release; return nil }) }()
	}
	close(release)
	for range 8 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	if flown != 1 {
		t.Errorf("%d canaries", flown)
	}
	c.lived = time.Now().Add(-2 * canaryHolds)
	if err := c.alive(func() error { return os.ErrInvalid }); err == nil || !c.lived.Before(time.Now().Add(-canaryHolds)) {
		t.Error("one that failed lived")
	}
}
