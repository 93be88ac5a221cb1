package oci

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/musterhq/muster/internal/testwait"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// ranged is a runtime whose sandboxes have ids of their own.
func ranged(t *testing.T, program string) *Runtime {
	t.Helper()
	r := newRuntime(t, program, testParent(t), testBase)
	if !r.ranged {
		t.Skip("sandboxes have no ids of their own here: ", r.Problems())
	}
	return r
}

// Two sandboxes that live at once have no id in common, on the node; each sees the files of its image, its directory and its
// writable layer as its own root's. An agent that takes over knows whose are in use, and what has ended is free again.
func TestEachSandboxHasItsOwnIDs(t *testing.T) {
	for _, program := range programs(t) {
		t.Run(program, func(t *testing.T) {
			r := ranged(t, program)
			image := busybox(t, r.IDBase())
			const script = `set -e
stat -c %u:%g / /bin/busybox /work /etc/hosts /dev/null > /work/owners
touch /bin/mine /work/mine; chown 7:8 /bin/busybox; stat -c %u:%g /bin/mine /work/mine /bin/busybox >> /work/owners
cat /proc/self/uid_map > /work/map; touch /work/ready; exec sleep 1000`
			start := func(r *Runtime, id string) (dir, base string) {
				dir = t.TempDir()
				if err := makeDirs(dir); err != nil {
					t.Fatal(err)
				}
				if _, err := r.Start(t.Context(), attempt(dir, id, image, script)); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if err := r.Remove(context.Background(), dir); err != nil {
						t.Error(err)
					}
				})
				testwait.Until(t, "the command to be ready", func() bool { _, err := os.Stat(filepath.Join(dir, "work", "ready")); return err == nil })
				owners, err := os.ReadFile(filepath.Join(dir, "work", "owners"))
				if want := strings.Repeat("0:0\n", 7) + "7:8\n"; err != nil || string(owners) != want {
					t.Errorf("owners seen inside: %q, %v", owners, err)
				}
				text, err := os.ReadFile(filepath.Join(dir, "work", "map"))
				if err != nil || len(strings.Fields(string(text))) != 3 {
					t.Fatalf("%q, %v", text, err)
				}
				return dir, strings.Fields(string(text))[1]
			}
			first, a := start(r, "ids-0-1")
			second, b := start(r, "ids-1-1")
			if shared := strconv.Itoa(r.IDBase()); a == b || a == shared || b == shared {
				t.Errorf("the ids of two sandboxes begin at %s and %s, those of layers at %s", a, b, shared)
			}

			next := likewise(t, r)
			for _, dir := range []string{first, second} {
				if _, err := next.Attach(t.Context(), dir); err != nil {
					t.Fatal(err)
				}
			}
			_, c := start(next, "ids-2-1")
			if slices.Contains([]string{a, b}, c) {
				t.Errorf("the next agent gave %s out again", c)
			}
			if err := next.Remove(t.Context(), first); err != nil {
				t.Fatal(err)
			}
			number, err := strconv.Atoi(a)
			if err != nil {
				t.Fatal(err)
			}
			i, ok := next.ranges.index(number)
			if !ok {
				t.Fatalf("%s is none of the ranges", a)
			}
			testwait.Until(t, "the range to be free", func() bool {
				next.ranges.mu.Lock()
				defer next.ranges.mu.Unlock()
				return next.ranges.used[i] == ""
			})
		})
	}
}

// Ranges of a block that is full come from the next one, and what is said late of a sandbox that is gone frees nobody else's.
func TestRanges(t *testing.T) {
	r := newRanges("/nonexistent", testBase, 13)
	for i := range allRanges {
		r.known[i] = ids{base: r.base(i), layers: os.Stdin, shared: os.Stdin}
	}
	seen := map[int]bool{}
	for i := range allRanges {
		own, err := r.take(strconv.Itoa(i))
		if err != nil || seen[own.base] || own.base <= testBase || own.base >= 1<<31-idRange {
			t.Fatalf("%d: %+v, %v", i, own, err)
		}
		seen[own.base] = true
	}
	if _, err := r.take("more"); err == nil {
		t.Error("there were more than there are")
	}
	own := r.base(13 * blockRanges) // that of "0"
	r.release("1", own)
	if _, err := r.take("more"); err == nil {
		t.Error("another's range was freed")
	}
	r.release("0", own)
	if got, err := r.take("more"); err != nil || got.base != own {
		t.Errorf("%+v, %v", got, err)
	}
}

// However many sandboxes start at once, each has two user namespaces of its own.
func TestRangesAreOpenedTogether(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	r := newRanges(initPath, testBase, 3)
	var mu sync.Mutex
	seen := map[string]int{}
	var g errgroup.Group
	for i := range 100 {
		g.Go(func() error {
			own, err := r.take(strconv.Itoa(i))
			if err != nil {
				return err
			}
			for _, f := range []*os.File{own.layers, own.shared} {
				name, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(f.Fd())))
				if err != nil {
					return err
				}
				mu.Lock()
				seen[name]++
				mu.Unlock()
			}
			kind, err := unix.IoctlRetInt(int(own.shared.Fd()), unix.NS_GET_NSTYPE)
			if err != nil || kind != unix.CLONE_NEWUSER {
				return fmt.Errorf("the namespace is of kind %#x, %v", kind, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	if len(seen) != 200 || !strings.HasPrefix(slices.Collect(maps.Keys(seen))[0], "user:[") {
		t.Errorf("100 ranges have %d namespaces", len(seen))
	}
	if n := len(r.known); n < 100 || n >= 100+maxOpened || len(r.opening) > 0 {
		t.Errorf("%d ranges are open, %d are being opened", n, len(r.opening))
	}
	for _, own := range r.known {
		closeAll([]*os.File{own.layers, own.shared})
	}
}

// A range whose namespaces cannot be opened is free again, and the error says why.
func TestRangeThatCannotBeOpened(t *testing.T) {
	r := newRanges("/nonexistent", testBase, 3)
	if _, err := r.take("a"); err == nil || !strings.Contains(err.Error(), "/nonexistent") {
		t.Errorf("error %v", err)
	}
	if _, err := openOwners(initPath, []initwire.IDRange{{Inside: 0, Outside: -1, Size: 1}}); err == nil || !strings.Contains(err.Error(), "user namespace") {
		t.Errorf("error %v", err)
	}
	for i, by := range r.used {
		if by != "" {
			t.Errorf("range %d belongs to %q", i, by)
		}
	}
}

// fewAtOnce is a program that opens at most so many namespaces in one start, as a node does whose kernel allows only a few more.
func fewAtOnce(t *testing.T, most int) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "few")
	text := fmt.Sprintf("#!/bin/sh\n[ $# -gt %d ] && exit 1\nexec %s \"$@\"\n", 1+most, initPath)
	if err := os.WriteFile(program, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return program
}

// Ranges that nobody has asked for yet do not keep a sandbox from its own.
func TestRangesBeyondTheLimitOfTheKernel(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	r := newRanges(fewAtOnce(t, 2), testBase, 3)
	for i := range 4 {
		own, err := r.take(strconv.Itoa(i))
		if err != nil {
			t.Fatalf("sandbox %d: %v", i, err)
		}
		defer closeAll([]*os.File{own.layers, own.shared})
	}
	if len(r.opening) > 0 {
		t.Errorf("%d ranges are being opened", len(r.opening))
	}
}

// A descriptor that this process has no room for is an error that says so.
func TestNamespaceWithoutADescriptor(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours := os.NewFile(uintptr(pair[0]), "owners")
	defer func() { _ = errors.Join(ours.Close(), unix.Close(pair[1])) }()
	if err := unix.Sendmsg(pair[1], []byte{0}, unix.UnixRights(pair[1]), nil, 0); err != nil {
		t.Fatal(err)
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	f, err := receiveFile(ours)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(err, unix.EMFILE) {
		t.Errorf("%v, error %q", f, err)
	}
}
