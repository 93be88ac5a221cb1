package oci

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/initbox"
	"github.com/musterhq/muster/internal/agent/runtimetest"
)

func suite(t *testing.T, program, parent string, base int) runtimetest.Suite {
	first := newRuntime(t, program, parent, base)
	if first.broken != nil {
		t.Fatal(first.broken)
	}
	t.Logf("%s, first uid %d, loops %v", first.Version(), first.IDBase(), first.loops)
	for _, p := range first.Problems() {
		t.Log(p)
	}
	if base > 0 && first.IDBase() == 0 {
		t.Skip("no user namespaces here")
	}
	noDisk := ""
	if !first.loops {
		noDisk = "no loop devices here"
	}
	noFreezer := ""
	if !first.groups.Freezes() {
		noFreezer = "nothing can freeze here"
	}
	return runtimetest.Suite{
		NoDiskLimit: noDisk,
		NoFreezer:   noFreezer,
		New:         func(t *testing.T) contract.Runtime { return likewise(t, first) },
		Image:       busybox(t, base),
		ShortLines:  fewerLines,
		Leftovers:   func(mark string) []string { return leftovers(t, mark) },
		InitPid: func(t *testing.T, dir string) int {
			all, err := initbox.Members(dir)
			if err != nil || len(all) == 0 || all[0].Role != initbox.RoleInit {
				t.Fatalf("members: %v, %v", all, err)
			}
			return all[0].Pid
		},
	}
}

// fewerLines are those of suites beside that of processes without cgroups, which prints a million.
const fewerLines = 100_000

func TestConformanceCrun(t *testing.T) { runtimetest.Run(t, suite(t, "crun", testParent(t), 0)) }
func TestConformanceRunc(t *testing.T) { runtimetest.Run(t, suite(t, "runc", testParent(t), 0)) }
func TestConformanceUserNamespace(t *testing.T) {
	runtimetest.Run(t, suite(t, "crun", testParent(t), testBase))
}

// leftovers are loop devices of sandboxes whose directory holds the mark. One is let go a moment after its last mount.
func leftovers(t testing.TB, mark string) []string {
	var left []string
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		left = nil
		files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if b, err := os.ReadFile(f); err == nil && strings.Contains(string(b), mark) {
				left = append(left, f+": "+strings.TrimSpace(string(b)))
			}
		}
		if len(left) == 0 || time.Now().After(deadline) {
			return left
		}
	}
}
