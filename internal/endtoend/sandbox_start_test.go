package endtoend

import (
	"syscall"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/initbox"
	"github.com/musterhq/muster/internal/agent/journal"
)

// starts is how many cold starts are measured, one after the other.
const starts = 100

// BenchmarkSandboxColdStart is from asking for a container whose image the node has to the first
// byte that its command prints: bare is `crun run` with an overlay of the same image; node is the same container
// asked for and read at the agent's own socket, with limits, an init and records on disk, without and with a way out; server
// is a job, from the first byte of its submission to the output in the client's hands. A process is the same job
// without an image. Target: node p50 below 15 ms, where bare is 8 to 9.
func BenchmarkSandboxColdStart(b *testing.B) {
	b.Run("bare", func(b *testing.B) {
		x := newBare(b)
		x.starts(3)
		before := ownAndChildren()
		b.ResetTimer()
		for range b.N {
			spread(b, "first", x.starts(starts))
		}
		b.ReportMetric(float64((ownAndChildren()-before).Microseconds())/float64(starts*b.N), "cpu-µs/op")
	})
	for _, mode := range []muster.NetworkMode{muster.NetworkNone, muster.NetworkBridge} {
		b.Run("node/"+string(mode), func(b *testing.B) {
			l := newLone(b)
			for range 3 {
				l.firstByte(mode, "echo", "x")
			}
			var all []time.Duration
			own, children := times(b, l.pid)
			b.ResetTimer()
			for range b.N {
				for range starts {
					all = append(all, l.firstByte(mode, "echo", "x"))
				}
			}
			spread(b, "first", all)
			own2, children2 := times(b, l.pid)
			b.ReportMetric(float64((own2+children2-own-children).Microseconds())/float64(len(all)), "cpu-µs/op")
		})
	}
	for _, name := range []string{"server", "process"} {
		b.Run(name, func(b *testing.B) {
			h, image := newContainerHost(b)
			spec := contained(image, 1, "echo", "x")
			if name == "process" {
				spec.Image = ""
			}
			events := h.watch()
			for range 3 {
				h.firstByte(events, spec)
			}
			var all []time.Duration
			before := h.cost()
			b.ResetTimer()
			for range b.N {
				for range starts {
					took, job := h.firstByte(events, spec)
					all = append(all, took)
					h.next(events, "alloc.ended", job.Name)
				}
			}
			spread(b, "first", all)
			// What happens inside of containers is not the agent's child, and not in it.
			h.cost().sub(before).per(b, starts*b.N)
		})
	}
}

// ownAndChildren is the processor time of this process and of its children so far.
func ownAndChildren() (all time.Duration) {
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var u syscall.Rusage
		_ = syscall.Getrusage(who, &u)
		all += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return all
}

// BenchmarkSandboxMany fills a node with 500 containers that stay. With 0, 100 and 500 there: how long
// one more takes to its first byte, and what each costs in memory of ours: its init, and its share of the agent.
// per-s is how fast they come when they are asked for together. Target: the last starts as fast as the first; an init has at most 3 MiB.
func BenchmarkSandboxMany(b *testing.B) {
	const samples = 20
	h, image := newContainerHost(b)
	stay := []string{"sh", "-c", "echo x; exec sleep 100000"}
	events := h.watch()
	running := 0
	empty := agentPSS(h)
	b.ResetTimer()
	for range b.N {
		for _, step := range []struct {
			total int
			name  string
		}{{0, "at-0"}, {100, "at-100"}, {500, "at-500"}} {
			if n := step.total - running; n > 0 {
				began := time.Now()
				job := h.submit(contained(image, n, stay...))
				for range n {
					h.next(events, "alloc.running", job.Name)
				}
				running = step.total
				b.ReportMetric(float64(n)/time.Since(began).Seconds(), step.name+"-per-s")
				inits := h.inits()
				if len(inits) != running {
					b.Fatalf("%d inits, want %d", len(inits), running)
				}
				sum := 0
				for _, pid := range inits {
					sum += pss(b, pid)
				}
				b.ReportMetric(float64(sum)/float64(running), step.name+"-init-KiB")
				b.ReportMetric(float64(agentPSS(h)-empty)/float64(running), step.name+"-agent-KiB")
			}
			var all []time.Duration
			for range samples {
				took, job := h.firstByte(events, contained(image, 1, "echo", "x"))
				all = append(all, took)
				h.next(events, "alloc.ended", job.Name)
			}
			spread(b, step.name, all)
		}
	}
}

func agentPSS(h *host) (kib int) {
	for _, pid := range h.agents() {
		kib += pss(h.tb, pid)
	}
	return kib
}

// inits are the pids of the inits of all sandboxes that run.
func (h *host) inits() (pids []int) {
	h.tb.Helper()
	dirs, err := journal.SandboxDirs(h.instance())
	if err != nil {
		h.tb.Fatal(err)
	}
	for _, dir := range dirs {
		members, err := initbox.Members(dir)
		if err != nil {
			h.tb.Fatal(err)
		}
		for _, m := range members {
			if m.Role == initbox.RoleInit {
				pids = append(pids, m.Pid)
			}
		}
	}
	return pids
}

// sandbox is the directory of an allocation's.
func (h *host) sandbox(id muster.AllocID) string {
	return h.instance() + "/sandboxes/" + string(id)
}
