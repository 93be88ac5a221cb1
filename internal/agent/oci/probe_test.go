package oci

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// TestNeverUnfiltered: where the filter of system calls does not work, nothing runs, and the first error says why.
func TestNeverUnfiltered(t *testing.T) {
	for _, program := range programs(t) {
		t.Run(program, func(t *testing.T) {
			r := newRuntime(t, program, testParent(t), 0)
			if r.seccomp == nil {
				t.Skip("no filter for this architecture")
			}
			r.filter, r.seccomp = "", &specs.LinuxSeccomp{DefaultAction: "SCMP_ACT_NONE_SUCH"}
			err := r.try(t.Context())
			if err == nil || !strings.Contains(err.Error(), "SCMP_ACT_NONE_SUCH") {
				t.Errorf("error %v", err)
			}
			if r.seccomp == nil {
				t.Error("it goes on without a filter")
			}
		})
	}
}

// TestAskedWhileProbing: what a runtime says of its node may be asked while another looks again. The race detector is the judge.
func TestAskedWhileProbing(t *testing.T) {
	r, err := New(Config{InitPath: "/nonexistent/init", Program: "/nonexistent/program", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 100 {
				if err := r.Check(t.Context()); err == nil {
					t.Error("it works with no program")
					return
				}
			}
		})
		all.Go(func() {
			for range 100 {
				if p, v, b := r.Problems(), r.Version(), r.IDBase(); len(p) > 0 || v != "" || b != 0 {
					t.Errorf("problems %q, version %q, first uid %d", p, v, b)
					return
				}
			}
		})
	}
	all.Wait()
}

// TestTemplateWithoutHoles: a new file system that lies in a file without holes is read piece by piece, and only what is in it is kept.
func TestTemplateWithoutHoles(t *testing.T) {
	const size = 64*templateRead + 4096
	f, err := os.OpenFile(filepath.Join(t.TempDir(), "full"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	zeros := make([]byte, templateRead)
	for at := int64(0); at < size; at += templateRead {
		if _, err := f.WriteAt(zeros[:min(templateRead, size-at)], at); err != nil {
			t.Fatal(err)
		}
	}
	want := []piece{
		{0, bytes.Repeat([]byte{1}, 4096)},
		{3*templateRead - 4096, bytes.Repeat([]byte{2}, 3*4096)}, // on both sides of where one read ends
		{size - 4096, bytes.Repeat([]byte{3}, 4096)},
	}
	for _, p := range want {
		if _, err := f.WriteAt(p.data, p.at); err != nil {
			t.Fatal(err)
		}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	made, err := readTemplate(f, size)
	runtime.ReadMemStats(&after)
	if err != nil {
		t.Fatal(err)
	}
	if took := after.TotalAlloc - before.TotalAlloc; took > 8*templateRead {
		t.Errorf("it took %d bytes of memory for a file of %d", took, size)
	}
	if len(made.pieces) != len(want) {
		t.Fatalf("%d pieces, want %d", len(made.pieces), len(want))
	}
	for i, p := range made.pieces {
		if p.at != want[i].at || !bytes.Equal(p.data, want[i].data) {
			t.Errorf("piece %d: %d bytes at %d, want %d at %d", i, len(p.data), p.at, len(want[i].data), want[i].at)
		}
	}
}
