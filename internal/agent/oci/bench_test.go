package oci

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/cgroup"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/initbox"
)

func benchSandbox(dir string, i int, image *contract.Image, command ...string) contract.SandboxConfig {
	return contract.SandboxConfig{
		ID: muster.AllocID("bench-0-" + strconv.Itoa(i)), Dir: filepath.Join(dir, strconv.Itoa(i)), Work: "/",
		Command: command, Env: []string{"PATH=/bin"},
		Resources: muster.Resources{CPU: 500, Memory: 64 * muster.MiB},
		Container: &contract.Container{Image: image, Network: &contract.Network{}},
	}
}

// firstByte starts a sandbox and waits for the first byte that it prints.
func firstByte(b testing.TB, r *Runtime, c contract.SandboxConfig) contract.Sandbox {
	b.Helper()
	if err := os.Mkdir(c.Dir, 0o700); err != nil {
		b.Fatal(err)
	}
	s, err := r.Start(b.Context(), c)
	if err != nil {
		b.Fatal(err)
	}
	log := s.Output("stdout")
	buf := make([]byte, 1)
	for {
		if _, err := log.ReadAt(buf, 0); err == nil {
			return s
		} else if err != io.EOF {
			b.Fatal(err)
		}
		time.Sleep(50 * time.Microsecond)
	}
}

func cpuUsed() time.Duration {
	var self, children syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &self)
	_ = syscall.Getrusage(syscall.RUSAGE_CHILDREN, &children)
	return time.Duration(self.Utime.Nano() + self.Stime.Nano() + children.Utime.Nano() + children.Stime.Nano())
}

// BenchmarkStart measures from the start to the first byte of output; beside it the same by the bare program, in a place made like ours.
func BenchmarkStart(b *testing.B) {
	for _, way := range []struct {
		program string
		base    int
	}{{"crun", 0}, {"crun", testBase}, {"runc", 0}} {
		b.Run(fmt.Sprintf("%s/base=%d", way.program, way.base), func(b *testing.B) {
			r := newRuntime(b, way.program, testParent(b), way.base)
			image := busybox(b, way.base)
			dir := b.TempDir()
			next := 0
			one := func() time.Duration {
				next++
				c := benchSandbox(dir, next, image, "echo", "x")
				began := time.Now()
				s := firstByte(b, r, c)
				took := time.Since(began)
				<-s.Done()
				if f := s.Result().Failure; f != nil {
					b.Fatal(f)
				}
				if err := r.Remove(b.Context(), c.Dir); err != nil {
					b.Fatal(err)
				}
				return took
			}
			one()
			var all []time.Duration
			used := cpuUsed()
			for b.Loop() {
				all = append(all, one())
			}
			report(b, all)
			b.ReportMetric(float64((cpuUsed()-used).Microseconds())/float64(len(all)), "cpu-µs/op")
		})
	}
	for _, program := range []string{"crun", "runc"} {
		b.Run(program+"/bare", func(b *testing.B) { bare(b, program) })
	}
}

func report(b *testing.B, all []time.Duration) {
	b.Helper()
	sorted := append([]time.Duration(nil), all...)
	for i := range sorted {
		for j := i; j > 0 && sorted[j] < sorted[j-1]; j-- {
			sorted[j], sorted[j-1] = sorted[j-1], sorted[j]
		}
	}
	b.ReportMetric(float64(sorted[len(sorted)/2].Microseconds())/1000, "ms-p50")
	b.ReportMetric(float64(sorted[len(sorted)*95/100].Microseconds())/1000, "ms-p95")
}

// bare runs a program alone: `echo x` on an overlay of the same image, in a private mount namespace.
func bare(b *testing.B, name string) {
	r := newRuntime(b, name, testParent(b), 0)
	image := busybox(b, 0)
	dir := b.TempDir()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			b.Error(err)
			return
		}
		_ = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		_ = unix.Unmount("/sys/fs/cgroup/unified", unix.MNT_DETACH)
		s := &stage{r: r, c: &contract.SandboxConfig{Container: &contract.Container{Image: image, Network: &contract.Network{}}}, name: "bare", box: dir, place: "/mnt"}
		_ = unix.Mount("tmpfs", s.place, "tmpfs", 0, "")
		spec := s.spec()
		spec.Process.Args = []string{"/bin/echo", "x"}
		spec.Mounts = spec.Mounts[:6] // without those from our own stage
		spec.Annotations = nil
		var all []time.Duration
		i := 0
		for b.Loop() {
			i++
			began := time.Now()
			for _, d := range []string{"root", "upper", "work"} {
				_ = os.Mkdir(s.at(d), 0o755)
			}
			options := "lowerdir=" + image.Root + "/" + strings.Join(image.Layers, ":"+image.Root+"/") + ",upperdir=/mnt/upper,workdir=/mnt/work"
			if err := unix.Mount("overlay", s.at("root"), "overlay", 0, options); err != nil {
				b.Error(err)
				return
			}
			if err := writeJSON(filepath.Join(dir, specName), spec); err != nil {
				b.Error(err)
				return
			}
			args := []string{"--root", filepath.Join(dir, "state")}
			if name == "crun" {
				args = append(args, "--cgroup-manager=disabled")
			}
			out, err := exec.Command(r.program.path, append(args, "run", "--bundle", dir, "bare"+strconv.Itoa(i))...).CombinedOutput()
			if err != nil || string(out) != "x\n" {
				b.Errorf("%v: %s", err, out)
				return
			}
			all = append(all, time.Since(began))
			_ = unix.Unmount(s.at("root"), unix.MNT_DETACH)
			for _, d := range []string{"upper", "work"} {
				_ = os.RemoveAll(s.at(d))
			}
		}
		report(b, all)
	}()
	<-done
}

// BenchmarkMany measures a start beside others that run, and what each costs in memory: proportional, of all our processes.
func BenchmarkMany(b *testing.B) {
	for _, n := range []int{1, 100, 500} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			r := newRuntime(b, "crun", testParent(b), 0)
			image := busybox(b, 0)
			dir := b.TempDir()
			var dirs []string
			b.Cleanup(func() {
				for _, d := range dirs {
					if err := r.Remove(context.Background(), d); err != nil {
						b.Error(err)
					}
				}
			})
			for i := range n {
				c := benchSandbox(dir, i, image, "sh", "-c", "echo x; exec sleep 1000")
				s := firstByte(b, r, c)
				dirs = append(dirs, c.Dir)
				_ = s.Close()
			}
			var pss int64
			for _, d := range dirs {
				all, err := initbox.Members(d)
				if err != nil || len(all) != 2 {
					b.Fatalf("members %v, %v", all, err)
				}
				text, _ := cgroup.ReadSmall(fmt.Sprintf("/proc/%d/smaps_rollup", all[0].Pid))
				pss += cgroup.Keyed(strings.ReplaceAll(strings.ReplaceAll(text, " kB", ""), ":", " "))["Pss"]
			}
			next := n
			var all []time.Duration
			for b.Loop() {
				next++
				c := benchSandbox(dir, next, image, "echo", "x")
				began := time.Now()
				s := firstByte(b, r, c)
				all = append(all, time.Since(began))
				<-s.Done()
				if err := r.Remove(b.Context(), c.Dir); err != nil {
					b.Fatal(err)
				}
			}
			report(b, all)
			b.ReportMetric(float64(pss)/float64(n), "pss-KiB")
		})
	}
}
