package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

//go:embed boot.sh
var bootScript []byte

//go:embed tests.sh
var testsScript []byte

// programs of this machine that tests need inside, with their libraries. Those that are not installed are said and left out: tests skip.
var programs = []string{"crun", "runc", "mkfs.ext4", "unshare"}

// diskSize is what the disk could hold; its file is sparse.
const diskSize = "8G"

// fillRoot makes everything that is on the disk.
func fillRoot(ctx context.Context, root string, packages []string) (tests []string, err error) {
	for _, dir := range []string{"bin", "dev", "etc", "lib64", "proc", "root", "run", "sbin", "sys", "tests", "tmp", "usr/bin", "usr/sbin", "var/tmp", "home/nobody"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return nil, err
		}
	}
	for name, body := range map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/home/nobody:/bin/sh\n",
		"etc/group":  "root:x:0:\nnogroup:x:65534:\n", "etc/hosts": "127.0.0.1 localhost\n", "etc/resolv.conf": "",
		"tests/run": string(testsScript),
	} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(body), 0o644); err != nil {
			return nil, err
		}
	}
	if err := putBusybox(ctx, root); err != nil {
		return nil, err
	}
	for _, name := range programs {
		if err := putProgram(ctx, root, name); errors.Is(err, exec.ErrNotFound) {
			fmt.Printf("e2e/vm: %s is not installed: what needs it is skipped\n", name)
		} else if err != nil {
			return nil, err
		}
	}
	if err := putFile(root, "/etc/mke2fs.conf"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	return putTests(ctx, root, packages)
}

func putBusybox(ctx context.Context, root string) error {
	path, err := filepath.EvalSymlinks("/bin/busybox")
	if err != nil {
		return fmt.Errorf("busybox-static is not installed: %w", err)
	}
	list, err := output(ctx, "", path, "--list-full")
	if err != nil {
		return err
	}
	if err := copyFile(path, filepath.Join(root, "bin/busybox"), 0o755); err != nil {
		return err
	}
	for _, name := range strings.Fields(string(list)) {
		place := filepath.Join(root, name)
		if err := os.Symlink("/bin/busybox", place); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}

// putProgram copies a program and the libraries that it is linked to.
func putProgram(ctx context.Context, root, name string) error {
	path, err := exec.LookPath(name)
	if err != nil {
		return err
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return err
	}
	// Busybox has some of these, smaller.
	place := filepath.Join(root, "usr/sbin", name)
	if err := os.Remove(filepath.Join(root, "sbin", name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := copyFile(path, place, 0o755); err != nil {
		return err
	}
	return putLibraries(ctx, root, path)
}

func putLibraries(ctx context.Context, root, path string) error {
	out, err := exec.CommandContext(ctx, "ldd", path).CombinedOutput()
	if err != nil {
		if bytes.Contains(out, []byte("not a dynamic executable")) {
			return nil
		}
		return fmt.Errorf("ldd %s: %w: %s", path, err, bytes.TrimSpace(out))
	}
	for _, word := range strings.Fields(string(out)) {
		if !filepath.IsAbs(word) {
			continue
		}
		if err := putFile(root, word); err != nil {
			return err
		}
	}
	return nil
}

// putFile copies a file of this machine to the same place.
func putFile(root, path string) error {
	place := filepath.Join(root, path)
	if _, err := os.Stat(place); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(place), 0o755); err != nil {
		return err
	}
	return copyFile(path, place, 0o755)
}

func copyFile(from, to string, mode os.FileMode) error {
	r, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	w, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, r)
	return errors.Join(err, w.Close())
}

// putTests builds test binaries, muster-init, and the programs that tests would else build for themselves.
func putTests(ctx context.Context, root string, packages []string) ([]string, error) {
	for place, pkg := range map[string]string{"tests/muster-init": "./cmd/muster-init", "tests/probe": "./internal/isolation/probe"} {
		if _, err := os.Stat(pkg); err != nil {
			return nil, fmt.Errorf("run it in the directory of the module: %w", err)
		}
		if err := build(ctx, "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(root, place), pkg); err != nil {
			return nil, err
		}
	}
	var order []string
	for _, pkg := range packages {
		name := strings.ReplaceAll(strings.TrimPrefix(filepath.Clean(pkg), "internal/"), "/", "-")
		place := filepath.Join(root, "tests", name+".test")
		if err := build(ctx, "test", "-c", "-o", place, pkg); err != nil {
			return nil, err
		}
		if _, err := os.Stat(place); err != nil {
			return nil, fmt.Errorf("%s has no tests", pkg)
		}
		// Tests find testdata beside their source.
		data := filepath.Join(root, "tests", name+".dir")
		if err := os.MkdirAll(data, 0o755); err != nil {
			return nil, err
		}
		if _, err := os.Stat(filepath.Join(pkg, "testdata")); err == nil {
			if err := os.CopyFS(filepath.Join(data, "testdata"), os.DirFS(filepath.Join(pkg, "testdata"))); err != nil {
				return nil, err
			}
		}
		order = append(order, name)
	}
	return order, os.WriteFile(filepath.Join(root, "tests", "order"), []byte(strings.Join(order, "\n")+"\n"), 0o644)
}

func build(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	cmd.WaitDelay = 5 * time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

func makeDisk(ctx context.Context, root, disk string) error {
	_, err := output(ctx, "", "mkfs.ext4", "-q", "-F", "-O", "^has_journal", "-E", "root_owner=0:0,lazy_itable_init=1", "-d", root, disk, diskSize)
	return err
}
