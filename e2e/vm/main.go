// Command vm runs tests of this module as root in a machine of their own: QEMU, without hardware help, boots Debian's cloud
// kernel with cgroup v2 alone, a disk with busybox, crun, runc, muster-init and the test binaries, runs these one after
// the other, prints what they print, and exits with their status. So the runtimes are tried on
// another kernel, on a cgroup layout that the developer's machine may not have, and where they may break what they like.
//
// It must never need rights on the machine that it runs on, nor leave anything there but its cache: the
// kernel's package, below the user's cache directory (MUSTER_TEST_CACHE says another). It needs qemu-system-x86_64, mkfs.ext4 and
// apt-get with a mirror for its first run. Callers: `make e2e-vm`.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// packages are tested unless others are named.
const packages = "./internal/agent/process ./internal/agent/oci ./internal/agent/network ./internal/isolation"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	var failed *failedTests
	switch {
	case errors.As(err, &failed):
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	case err != nil:
		fmt.Fprintln(os.Stderr, "e2e/vm:", err)
		os.Exit(2)
	}
}

// failedTests is the machine's own verdict; everything else that goes wrong is ours.
type failedTests struct{ names string }

func (f *failedTests) Error() string { return "failed in the machine: " + f.names }

func run(ctx context.Context) error {
	wanted := flag.String("packages", packages, "packages whose tests are run, separated by blanks")
	only := flag.String("run", "", "run only these tests, as for go test -run")
	short := flag.Bool("short", false, "leave long tests out, as for go test -short")
	memory := flag.Int("memory", 2048, "memory of the machine in MiB")
	limit := flag.Duration("timeout", 2*time.Hour, "end the machine after this long")
	verbose := flag.Bool("v", false, "print each test, and what the kernel says")
	flag.Parse()

	began := time.Now()
	work, err := os.MkdirTemp("", "muster-vm-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }()
	cache, err := cacheDir()
	if err != nil {
		return err
	}
	k, err := findKernel(ctx, cache)
	if err != nil {
		return fmt.Errorf("kernel: %w", err)
	}
	root := filepath.Join(work, "root")
	tests, err := fillRoot(ctx, root, strings.Fields(*wanted))
	if err != nil {
		return fmt.Errorf("disk: %w", err)
	}
	arguments := strings.Join(testArguments(*only, *short, *verbose), "\n") + "\n"
	if err := os.WriteFile(filepath.Join(root, "tests", "arguments"), []byte(arguments), 0o644); err != nil {
		return err
	}
	disk := filepath.Join(work, "disk.img")
	if err := makeDisk(ctx, root, disk); err != nil {
		return fmt.Errorf("disk: %w", err)
	}
	initrd := filepath.Join(work, "initrd.cpio")
	if err := writeInitrd(initrd, k); err != nil {
		return fmt.Errorf("initrd: %w", err)
	}
	fmt.Printf("e2e/vm: kernel %s, %d packages, made in %.0f s\n", k.release, len(tests), time.Since(began).Seconds())

	ctx, cancel := context.WithTimeout(ctx, *limit)
	defer cancel()
	m := machine{kernel: k.image, initrd: initrd, disk: disk, memory: *memory, verbose: *verbose, tests: tests}
	booted := time.Now()
	err = m.run(ctx)
	fmt.Printf("e2e/vm: the machine ran for %.0f s\n", time.Since(booted).Seconds())
	return err
}

// testArguments are those of each test binary.
func testArguments(only string, short, verbose bool) []string {
	arguments := []string{"-test.timeout=0"}
	if only != "" {
		arguments = append(arguments, "-test.run="+only)
	}
	if short {
		arguments = append(arguments, "-test.short")
	}
	if verbose {
		arguments = append(arguments, "-test.v")
	}
	return arguments
}

func cacheDir() (string, error) {
	dir := os.Getenv("MUSTER_TEST_CACHE")
	if dir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", err
		}
		dir = filepath.Join(user, "muster-test")
	}
	return dir, os.MkdirAll(dir, 0o755)
}
