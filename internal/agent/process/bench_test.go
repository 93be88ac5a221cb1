package process

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/cgroup"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/initbox"
)

func cpuUsed() time.Duration {
	var self, children syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &self)
	_ = syscall.Getrusage(syscall.RUSAGE_CHILDREN, &children)
	return time.Duration(self.Utime.Nano() + self.Stime.Nano() + children.Utime.Nano() + children.Stime.Nano())
}

// BenchmarkTrue measures a whole sandbox of `true`: start, end, result, removal. Beside it a bare fork and exec.
func BenchmarkTrue(b *testing.B) {
	b.Run("bare", func(b *testing.B) {
		perSandbox(b, 1, func(int) error {
			pid, err := syscall.ForkExec("/bin/true", []string{"true"}, &syscall.ProcAttr{})
			if err != nil {
				return err
			}
			_, err = syscall.Wait4(pid, nil, 0, nil)
			return err
		})
	})
	for _, groups := range []bool{false, true} {
		if groups && os.Geteuid() != 0 {
			continue
		}
		for _, parallel := range []int{1, 2, 8} {
			b.Run(fmt.Sprintf("cgroups=%v/parallel=%d", groups, parallel), func(b *testing.B) {
				parent := ""
				if groups {
					parent = "muster-test/bench-" + strconv.Itoa(os.Getpid())
					defer func() {
						if err := cgroup.RemoveParent(parent); err != nil {
							b.Error(err)
						}
					}()
				}
				r, err := New(Config{InitPath: initPath, CgroupParent: parent})
				if err != nil {
					b.Fatal(err)
				}
				root := b.TempDir()
				perSandbox(b, parallel, func(i int) error { return runTrue(r, root, i) })
			})
		}
	}
}

func runTrue(r *Runtime, root string, i int) error {
	ctx := context.Background()
	dir := filepath.Join(root, strconv.Itoa(i))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	s, err := r.Start(ctx, contract.SandboxConfig{
		ID: muster.AllocID("bench-0-" + strconv.Itoa(i)), Dir: dir, Work: "/", Command: []string{"true"},
		Env: []string{"PATH=/usr/bin:/bin"}, Resources: muster.Resources{CPU: 500, Memory: 64 * muster.MiB},
	})
	if err != nil {
		return err
	}
	<-s.Done()
	if f := s.Result().Failure; f != nil {
		return f
	}
	if err := r.Remove(ctx, dir); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

func perSandbox(b *testing.B, parallel int, do func(i int) error) {
	var next atomic.Int64
	var wg sync.WaitGroup
	used := cpuUsed()
	began := time.Now()
	b.ResetTimer()
	for range parallel {
		wg.Go(func() {
			for {
				i := next.Add(1)
				if i > int64(b.N) {
					return
				}
				if err := do(int(i)); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64((cpuUsed()-used).Microseconds())/float64(b.N), "cpu-µs/op")
	b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "per-s")
}

// BenchmarkIdleInit measures the memory of inits whose commands sleep: proportional
// (what one more costs, with what they share divided among them) and private.
func BenchmarkIdleInit(b *testing.B) {
	const n = 50
	r, err := New(Config{InitPath: initPath})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		root := b.TempDir()
		var pss, private float64
		for i := range n {
			dir := filepath.Join(root, strconv.Itoa(i))
			if err := os.Mkdir(dir, 0o700); err != nil {
				b.Fatal(err)
			}
			s, err := r.Start(b.Context(), contract.SandboxConfig{
				ID: "idle-0-1", Dir: dir, Work: "/", Command: []string{"sleep", "1000"}, Env: []string{"PATH=/usr/bin:/bin"},
			})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() {
				_ = s.Close()
				_ = initbox.Destroy(context.Background(), dir)
			})
		}
		for i := range n {
			all, err := initbox.Members(filepath.Join(root, strconv.Itoa(i)))
			if err != nil || len(all) != 2 {
				b.Fatalf("members %v, %v", all, err)
			}
			text, ok := cgroup.ReadSmall(fmt.Sprintf("/proc/%d/smaps_rollup", all[0].Pid))
			if !ok {
				b.Fatal("no smaps_rollup")
			}
			sizes := cgroup.Keyed(strings.ReplaceAll(strings.ReplaceAll(text, " kB", ""), ":", " "))
			pss += float64(sizes["Pss"])
			private += float64(sizes["Private_Clean"] + sizes["Private_Dirty"])
		}
		b.ReportMetric(pss/n, "pss-KiB")
		b.ReportMetric(private/n, "private-KiB")
	}
}

// BenchmarkOutput measures how fast a command's output goes to the disk, and what it costs.
func BenchmarkOutput(b *testing.B) {
	const size = 100_000_000
	r, err := New(Config{InitPath: initPath})
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(size)
	used := cpuUsed()
	for b.Loop() {
		dir := b.TempDir()
		s, err := r.Start(b.Context(), contract.SandboxConfig{
			ID: "output-0-1", Dir: dir, Work: "/", Command: []string{"head", "-c", strconv.Itoa(size), "/dev/zero"},
			Env: []string{"PATH=/usr/bin:/bin"}, OutputLimit: 8 << 20,
		})
		if err != nil {
			b.Fatal(err)
		}
		<-s.Done()
	}
	b.ReportMetric(float64((cpuUsed()-used).Milliseconds())/float64(b.N), "cpu-ms/op")
}
