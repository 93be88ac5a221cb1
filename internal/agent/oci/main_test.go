package oci

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/musterhq/muster/internal/agent/cgroup"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/initbox"
	"github.com/musterhq/muster/internal/agent/runtimetest"
	"github.com/musterhq/muster/internal/programtest"
)

// initPath is muster-init, built once; a helper process gets it handed over.
var initPath = os.Getenv("MUSTER_TEST_INIT")

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if len(os.Args) > 1 && os.Args[1] == agentArgument {
		return runAgent(os.Args[2:])
	}
	if len(os.Args) > 1 && os.Args[1] == poorArgument {
		return poorNode(os.Args[2:])
	}
	if initPath == "" {
		dir, err := os.MkdirTemp("", "muster-init-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() { _ = os.RemoveAll(dir) }()
		if initPath, err = programtest.Init(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return m.Run()
}

// blocks counts the cases that likewise has made runtimes for; blockOf is which of them a case has, by its name.
var (
	blocks  atomic.Int64
	blockOf sync.Map
)

// testBase is the first uid of the sandboxes of tests.
const testBase = 1_000_000

// testParent is a cgroup parent for one test, gone after it.
func testParent(t testing.TB) string {
	parent := "muster-test/" + strings.ReplaceAll(t.Name(), "/", "-") + "-" + strconv.Itoa(os.Getpid())
	t.Cleanup(func() {
		if err := cgroup.RemoveParent(parent); err != nil {
			t.Error(err)
		}
	})
	return parent
}

// newRuntime makes a runtime with this program, or skips the test.
func newRuntime(t testing.TB, program, parent string, base int) *Runtime {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("containers need root")
	}
	r, err := New(Config{
		InitPath: initPath, CgroupParent: parent, Program: program, IDBase: base,
		StartLimit: time.Duration(runtimetest.Slow()) * initbox.DefaultStartLimit,
		Log:        slog.New(initMinder{slog.DiscardHandler, t}),
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.ready(t.Context(), false); r.program == nil || r.groups == nil {
		t.Skipf("no containers by %s here: %v", program, err)
	}
	return r
}

// likewise is a second runtime on the node of r, which does not try again what that has found.
func likewise(t testing.TB, r *Runtime) *Runtime {
	t.Helper()
	c := r.config
	// The runtimes of parallel cases hand out different user ids; those of one case are agents that were restarted, with the same.
	block, known := blockOf.Load(t.Name())
	if !known {
		block = int(blocks.Add(1))
		blockOf.Store(t.Name(), block)
	}
	c.IDBlock = block.(int)
	c.Log = slog.New(initMinder{slog.DiscardHandler, t})
	again, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	r.found(func() {
		again.probed, again.problems, again.program, again.groups = r.probed, r.problems, r.program, r.groups
		again.seccomp, again.filter, again.masked, again.readonly = r.seccomp, r.filter, r.masked, r.readonly
		again.places, again.base, again.owners, again.loops, again.ranged = r.places, r.base, r.owners, r.loops, r.ranged
	})
	return again
}

// initMinder fails a test whose init crashed, or, built with the race detector, raced.
type initMinder struct {
	slog.Handler
	t testing.TB
}

func (initMinder) Enabled(context.Context, slog.Level) bool { return true }

func (m initMinder) Handle(_ context.Context, r slog.Record) error {
	if r.Message == initbox.InitWords {
		r.Attrs(func(a slog.Attr) bool {
			m.t.Errorf("%s: %s", r.Message, a)
			return true
		})
	}
	return nil
}

// busybox is a small image for a runtime, or skips the test.
func busybox(t testing.TB, shift int) *contract.Image {
	t.Helper()
	dir := t.TempDir()
	layers, err := runtimetest.Busybox(dir, shift)
	if err != nil {
		t.Skip(err)
	}
	return &contract.Image{Ref: "busybox", Root: dir, Layers: layers}
}

func writeJSON(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o600)
}

func owner(t *testing.T, path string) int {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return int(info.Sys().(*syscall.Stat_t).Uid)
}

// allocate gives a file room on the disk without writing it.
func allocate(f *os.File, size int64) error { return syscall.Fallocate(int(f.Fd()), 0, 0, size) }
