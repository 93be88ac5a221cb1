package endtoend

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/agent/initbox"
	"github.com/musterhq/muster/internal/agent/journal"
)

// keep makes an environment with so many warm runners, and waits for them.
func (h *host) keep(name, image string, warm int, edit ...func(*api.EnvironmentSpec)) {
	h.tb.Helper()
	s := api.EnvironmentSpec{Name: name, Template: api.Template{Image: image, Resources: api.ResourcesSpec{CPU: 1, Memory: 16 << 20}, KillGrace: api.Duration(time.Millisecond)}, Warm: api.WarmSpec{Min: &warm, Target: &warm}}
	for _, e := range edit {
		e(&s)
	}
	if _, err := h.cl.SetEnvironment(h.tb.Context(), api.EnvironmentSetting{Spec: s}); err != nil {
		h.tb.Fatal(err)
	}
	h.stocked(name, warm)
}

// stocked waits until so many runners are warm and nothing else is on its way.
func (h *host) stocked(name string, warm int) {
	h.tb.Helper()
	for deadline := time.Now().Add(patience); ; {
		e, err := h.cl.Environment(h.tb.Context(), "default", name)
		if err != nil {
			h.tb.Fatal(err)
		}
		if e.Runners.Warm == warm && e.Runners.Starting == 0 {
			return
		}
		if time.Now().After(deadline) {
			h.tb.Fatalf("%d runners of %s are not warm: %+v; %s; %s", warm, name, e.Runners, e.Failure, e.Waits)
		}
		<-time.After(5 * time.Millisecond)
	}
}

func (h *host) claim(name string) *api.Claim {
	h.tb.Helper()
	c, err := h.cl.Claim(h.tb.Context(), api.ClaimRequest{Environment: name, Wait: api.Duration(patience)}, "")
	if err != nil {
		h.tb.Fatal(err)
	}
	return c
}

func (h *host) release(claims ...*api.Claim) {
	h.tb.Helper()
	for _, c := range claims {
		if err := h.cl.Release(h.tb.Context(), muster.AllocID(c.Runner)); err != nil {
			h.tb.Fatal(err)
		}
	}
}

// claims makes n claims by so many clients at once, and tells how long each took.
func (h *host) claims(name string, clients, n int) (took []time.Duration, got []*api.Claim) {
	h.tb.Helper()
	var mu sync.Mutex
	var wg sync.WaitGroup
	left := make(chan struct{}, n)
	for range n {
		left <- struct{}{}
	}
	close(left)
	for range clients {
		wg.Go(func() {
			for range left {
				began := time.Now()
				c := h.claim(name)
				d := time.Since(began)
				mu.Lock()
				took, got = append(took, d), append(got, c)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return took, got
}

const warmRunners = 128

// BenchmarkRunnerClaim is a claim over HTTP of a runner that is warm, durable, in containers, by 1, 16 and 64 clients who ask
// again and again while the stock is being refilled. claim alone is what they wait; the rates are of stocks that
// are used up once. Target: p50 below 2 ms, p99 below 20 ms.
func BenchmarkRunnerClaim(b *testing.B) {
	h, image := newContainerHost(b)
	h.keep("e", image, warmRunners)
	for _, clients := range []int{1, 16, 64} {
		b.Run(map[int]string{1: "1-client", 16: "16-clients", 64: "64-clients"}[clients], func(b *testing.B) {
			var all []time.Duration
			for range b.N {
				b.StopTimer()
				h.stocked("e", warmRunners)
				b.StartTimer()
				began := time.Now()
				took, got := h.claims("e", clients, warmRunners)
				b.ReportMetric(warmRunners/time.Since(began).Seconds(), "claims-per-s")
				b.StopTimer()
				all = append(all, took...)
				h.release(got...)
				b.StartTimer()
			}
			spread(b, "claim", all)
		})
	}
}

// BenchmarkRunnerFirstOutput is from asking for a runner to what echo said in it, all by HTTP: with runners that run while they are warm, and with
// frozen ones. exec is the second command of the same holder, by WebSocket to its first byte, and post the third, by a plain request to its
// answer; bare is `crun exec` in the same run; cold is a claim where none is kept warm. Targets: claim to output p50 below 3 ms, p99 below 15 ms; exec p50 below 1.5 ms.
func BenchmarkRunnerFirstOutput(b *testing.B) {
	const samples = 100
	echo := api.ExecRequest{Command: []string{"echo", "x"}}
	h, image := newContainerHost(b)
	for _, name := range []string{"running", "frozen"} {
		h.keep(name, image, samples/2, func(s *api.EnvironmentSpec) { s.Frozen = name == "frozen" })
		if name == "frozen" {
			<-time.After(time.Second) // the last ones are told a moment after they are warm
		}
		b.Run(name, func(b *testing.B) {
			var all, execs, posts []time.Duration
			for range b.N {
				for range samples {
					h.stocked(name, samples/2)
					began := time.Now()
					c := h.claim(name)
					r, err := h.cl.RunExec(b.Context(), muster.AllocID(c.Runner), echo)
					all = append(all, time.Since(began))
					if err := saysX(r.Stdout, err); err != nil {
						b.Fatal(err)
					}
					began = time.Now()
					e, err := h.cl.Exec(b.Context(), muster.AllocID(c.Runner), echo)
					if err != nil {
						b.Fatal(err)
					}
					_, _, err = e.Next()
					execs = append(execs, time.Since(began))
					if err == nil {
						_, err = e.Wait(io.Discard, io.Discard)
					}
					if err != nil {
						b.Fatal(err)
					}
					_ = e.Close()
					began = time.Now()
					r, err = h.cl.RunExec(b.Context(), muster.AllocID(c.Runner), echo)
					posts = append(posts, time.Since(began))
					if err := saysX(r.Stdout, err); err != nil {
						b.Fatal(err)
					}
					h.release(c)
				}
			}
			spread(b, "claim-to-output", all)
			spread(b, "exec", execs)
			spread(b, "post", posts)
		})
		if err := h.cl.DeleteEnvironment(b.Context(), "default", name, true); err != nil {
			b.Fatal(err)
		}
	}
	h.keep("cold", image, 0)
	b.Run("cold", func(b *testing.B) {
		var all []time.Duration
		for range b.N {
			for range samples / 4 {
				began := time.Now()
				c := h.claim("cold")
				r, err := h.cl.RunExec(b.Context(), muster.AllocID(c.Runner), echo)
				all = append(all, time.Since(began))
				if err := saysX(r.Stdout, err); err != nil {
					b.Fatal(err)
				}
				h.release(c)
				h.stocked("cold", 0)
			}
		}
		spread(b, "claim-to-output", all)
	})
	b.Run("bare", func(b *testing.B) {
		x := newBare(b)
		for range b.N {
			spread(b, "exec", x.execs(samples))
		}
	})
}

// BenchmarkRunnerBurst is 200 claims at once where 50 are warm: 50 are served from the stock, the others as runners start.
func BenchmarkRunnerBurst(b *testing.B) {
	h, image := newContainerHost(b)
	h.keep("e", image, 50)
	for range b.N {
		h.stocked("e", 50)
		before := processorOf(b, h.cmd.Process.Pid)
		took, got := h.claims("e", 200, 200)
		// Until as many are warm as before: so 200 have been started, however many the last claim still waited for.
		h.stocked("e", 50)
		b.ReportMetric(float64((processorOf(b, h.cmd.Process.Pid)-before).Microseconds())/1000/200, "cpu-ms/start")
		seen := map[string]bool{}
		for _, c := range got {
			seen[c.Runner] = true
		}
		if len(seen) != 200 {
			b.Fatalf("200 claims have %d runners", len(seen))
		}
		spread(b, "claim", took)
		b.ReportMetric(float64(took[49].Microseconds())/1000, "50th-ms")
		b.ReportMetric(float64(took[199].Microseconds())/1000, "last-ms")
		h.release(got...)
	}
}

// BenchmarkRunnerStdout is what the stdout of a command in a claimed runner comes through with: http by WebSocket, to this process;
// cli by `muster exec` into a pipe that this process reads. pipe is the same program read by this process, without anything of ours, in
// the same run.
func BenchmarkRunnerStdout(b *testing.B) {
	const size = 256 << 20
	command := []string{"busybox", "dd", "if=/dev/zero", "bs=1M", "count=" + fmt.Sprint(size>>20)}
	h, image := newContainerHost(b)
	h.keep("e", image, 1)
	c := h.claim("e")
	b.Run("pipe", func(b *testing.B) {
		b.SetBytes(size)
		for range b.N {
			piped(b, size, exec.Command(command[0], command[1:]...))
		}
	})
	b.Run("http", func(b *testing.B) {
		b.SetBytes(size)
		for range b.N {
			e, err := h.cl.Exec(b.Context(), muster.AllocID(c.Runner), api.ExecRequest{Command: command})
			if err != nil {
				b.Fatal(err)
			}
			whole(b, size, func(w io.Writer) error { _, err := e.Wait(w, io.Discard); return err })
			_ = e.Close()
		}
	})
	b.Run("cli", func(b *testing.B) {
		b.SetBytes(size)
		for range b.N {
			cmd := exec.Command(programs.muster, append([]string{"exec", c.Runner, "--data-dir", h.data, "--"}, command...)...)
			cmd.Env = h.cmd.Env
			piped(b, size, cmd)
		}
	})
	h.release(c)
}

// BenchmarkRunnerMemory is what 100 warm runners cost in memory of ours: PSS of each init, running and frozen, and of server, agent
// and inits together for each runner. Target: an init below 3 MiB, all together below 12 MB a runner.
func BenchmarkRunnerMemory(b *testing.B) {
	ours := func(h *host) (kib int) { return agentPSS(h) + pss(b, h.cmd.Process.Pid) }
	for range b.N {
		for _, name := range []string{"running", "frozen"} {
			h, image := newContainerHost(b)
			h.keep(name, image, 1, func(s *api.EnvironmentSpec) { s.Frozen = name == "frozen" })
			inits := func() (kib int) {
				dirs, err := journal.SandboxDirs(h.instance())
				if err != nil {
					b.Fatal(err)
				}
				for _, dir := range dirs {
					if members, err := initbox.Members(dir); err == nil && len(members) > 0 {
						kib += pss(b, members[0].Pid)
					}
				}
				return kib
			}
			b.ReportMetric(float64(ours(h)+inits())/1024, name+"-all-with-1-MiB")
			h.keep(name, image, 100, func(s *api.EnvironmentSpec) { s.Frozen = name == "frozen" })
			b.ReportMetric(float64(inits())/100, name+"-init-KiB")
			b.ReportMetric(float64(ours(h)+inits())/100, name+"-all-of-100-KiB")
			h.clean()
		}
	}
}

// BenchmarkRunnerRestart is a server with 500 warm runners that are processes: how long they take to be warm, and how long
// nobody answers when the server is stopped and when it is killed, until it does again. Target: below 1 s.
func BenchmarkRunnerRestart(b *testing.B) {
	const warm = 500
	h := newHost(b)
	c := fixed(1, 1000)
	h.serve(c)
	began := time.Now()
	h.keep("e", "", warm, func(s *api.EnvironmentSpec) { s.Resources = api.ResourcesSpec{CPU: 0.1, Memory: 8 << 20} })
	b.ReportMetric(warm/time.Since(began).Seconds(), "starts-per-s")
	b.ReportMetric(float64(processorOf(b, h.cmd.Process.Pid).Microseconds())/1000/warm, "cpu-ms/start")
	for range b.N {
		for _, how := range []string{"stopped", "killed"} {
			closed := time.Now()
			if how == "stopped" {
				h.stop()
			} else {
				if err := h.cmd.Process.Signal(syscall.SIGKILL); err != nil {
					b.Fatal(err)
				}
				<-h.done
			}
			h.start("server", "-c", filepath.Join(h.dir, "muster.yaml"))
			b.ReportMetric(time.Since(closed).Seconds()*1000, how+"-closed-ms")
			claimed := time.Now()
			got := h.claim("e")
			b.ReportMetric(time.Since(claimed).Seconds()*1000, how+"-first-claim-ms")
			h.release(got)
			h.stocked("e", warm)
		}
	}
}

// processorOf is the processor time that a process and all under it have had. Kernels count it in hundredths of a second.
func processorOf(b *testing.B, root int) time.Duration {
	b.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		b.Fatal(err)
	}
	type process struct {
		parent int
		ticks  int64
	}
	all := map[int]process{}
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended meanwhile
		}
		// The name may have spaces; behind it come state, parent and so on; 12 and 13 are its own time, 14 and 15 that of children that ended.
		_, rest, _ := strings.Cut(string(text[bytes.LastIndexByte(text, ')'):]), " ")
		f := strings.Fields(rest)
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		var p process
		p.parent, _ = strconv.Atoi(f[1])
		for _, k := range f[11:15] {
			n, _ := strconv.ParseInt(k, 10, 64)
			p.ticks += n
		}
		all[pid] = p
	}
	ticks := int64(0)
	for pid, p := range all {
		for up := pid; up > 1; up = all[up].parent {
			if up == root {
				ticks += p.ticks
				break
			}
		}
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
