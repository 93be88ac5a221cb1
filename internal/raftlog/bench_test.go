package raftlog

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/fs"
	"golang.org/x/sys/unix"

	"github.com/musterhq/muster/internal/testwait"
)

// The benchmarks compare, in one run on one disk: this package, bare raft over
// raft-wal with as many goroutines, raft-wal alone, and the disk's own fsync.
// Each reports operations per second and CPU microseconds per operation.
//
//	go test -run xxx -bench Propose -benchtime 2s ./internal/raftlog

const benchSize = 300

// blank is a machine that does nothing.
type blank struct{}

func (blank) Apply(_, _ uint64, _ int64, p [][]byte) []any { return make([]any, len(p)) }
func (blank) Snapshot() (Image, error)                     { return recorded(nil), nil }
func (blank) Restore(r io.Reader) error                    { _, err := io.Copy(io.Discard, r); return err }

func BenchmarkPropose(b *testing.B) {
	for _, n := range []int{1, 16, 128} {
		b.Run(fmt.Sprintf("muster/proposers=%d", n), func(b *testing.B) { benchMuster(b, n) })
		b.Run(fmt.Sprintf("bare-raft/proposers=%d", n), func(b *testing.B) { benchBare(b, n) })
	}
	b.Run("bare-wal/proposers=1", benchWAL)
	b.Run("disk/fdatasync-4KiB", benchDisk)
}

func benchMuster(b *testing.B, proposers int) {
	r := start(b, Config{Dir: b.TempDir(), Machine: blank{}, LowWater: func(uint64) uint64 { return 0 }})
	before := r.Applied()
	spread(b, proposers, func(p []byte) error {
		_, err := r.Propose(context.Background(), p)
		return err
	})
	b.ReportMetric(float64(b.N)/float64(r.Applied()-before), "proposals/entry")
	r.mustStop(b)
}

// nothing is blank for raft itself.
type nothing struct{}

func (nothing) Apply(*raft.Log) any                 { return nil }
func (nothing) Snapshot() (raft.FSMSnapshot, error) { return nil, fmt.Errorf("none") }
func (nothing) Restore(io.ReadCloser) error         { return nil }

func benchBare(b *testing.B, proposers int) {
	dir := b.TempDir()
	quiet := hclog.NewNullLogger()
	w, err := wal.Open(dir, wal.WithLogger(quiet))
	if err != nil {
		b.Fatal(err)
	}
	defer w.Close()
	addr, transport := raft.NewInmemTransport("")
	conf := raft.DefaultConfig()
	conf.LocalID = raft.ServerID(addr)
	conf.Logger = quiet
	conf.HeartbeatTimeout, conf.ElectionTimeout, conf.LeaderLeaseTimeout = 20*time.Millisecond, 20*time.Millisecond, 20*time.Millisecond
	snaps := raft.NewInmemSnapshotStore()
	servers := raft.Configuration{Servers: []raft.Server{{ID: conf.LocalID, Address: addr}}}
	if err := raft.BootstrapCluster(conf, w, w, snaps, transport, servers); err != nil {
		b.Fatal(err)
	}
	r, err := raft.NewRaft(conf, nothing{}, w, w, snaps, transport)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = r.Shutdown().Error() }()
	testwait.Until(b, "raft leads", func() bool { return r.State() == raft.Leader })
	if err := r.Barrier(0).Error(); err != nil {
		b.Fatal(err)
	}
	spread(b, proposers, func(p []byte) error { return r.Apply(p, 0).Error() })
}

func benchWAL(b *testing.B) {
	w, err := wal.Open(b.TempDir(), wal.WithLogger(hclog.NewNullLogger()))
	if err != nil {
		b.Fatal(err)
	}
	defer w.Close()
	var index uint64
	spread(b, 1, func(p []byte) error {
		index++
		return w.StoreLog(&raft.Log{Index: index, Term: 1, Data: p})
	})
}

func benchDisk(b *testing.B) {
	dir := b.TempDir()
	made, err := fs.New().Create(dir, "f", 64<<20) // allocated like a segment
	if err != nil {
		b.Fatal(err)
	}
	made.Close()
	f, err := os.OpenFile(filepath.Join(dir, "f"), os.O_RDWR, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	block := make([]byte, 4096)
	var at int64
	spread(b, 1, func(p []byte) error {
		copy(block, p)
		if _, err := f.WriteAt(block, at); err != nil {
			return err
		}
		at = (at + 4096) % (64 << 20)
		return unix.Fdatasync(int(f.Fd()))
	})
}

// spread does b.N operations from n goroutines and reports the rate.
func spread(b *testing.B, n int, do func(p []byte) error) {
	b.Helper()
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	b.ResetTimer()
	cpu := cpuTime()
	for range n {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				p := make([]byte, benchSize)
				p[0] = 1
				if err := do(p); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
	b.ReportMetric(float64((cpuTime()-cpu).Microseconds())/float64(b.N), "cpu-µs/op")
	b.ReportMetric(0, "ns/op")
}

func cpuTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
