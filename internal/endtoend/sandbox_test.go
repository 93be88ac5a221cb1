package endtoend

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/internal/agent/journal"
	"github.com/musterhq/muster/internal/imagetest"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// needContainers skips a benchmark where there can be none.
func needContainers(b *testing.B) {
	b.Helper()
	if os.Geteuid() != 0 {
		b.Skip("containers need root")
	}
	if _, err := exec.LookPath("crun"); err != nil {
		b.Skip("crun is not installed")
	}
}

// newContainerHost serves one large node that runs containers, and is the reference of an
// image of busybox there, which the node has in its cache already.
func newContainerHost(b *testing.B) (h *host, image string) {
	b.Helper()
	needContainers(b)
	busybox := imagetest.Busybox(b)
	h = newHost(b)
	h.serve(fixed(1, 1000))
	file := filepath.Join(h.dir, "busybox.tar")
	imagetest.WriteArchive(b, file, "busybox:latest", busybox)
	image = "docker-archive:" + file
	h.run(contained(image, 1, "true"))
	return h, image
}

// contained is a job of containers of a core each, as jobs have by default: whoever asks for
// less has less weight on a busy machine, from the first moment on.
func contained(image string, count int, command ...string) api.JobSpec {
	return api.JobSpec{Template: api.Template{Image: image, Command: command, Resources: api.ResourcesSpec{CPU: 1, Memory: 16 << 20}}, Count: count}
}

// firstByte submits a job of one member and waits until the first byte of its stdout has come through the server.
func (h *host) firstByte(events *told, spec api.JobSpec) (took time.Duration, job *api.JobSubmitted) {
	h.tb.Helper()
	began := time.Now()
	job = h.submit(spec)
	h.next(events, "alloc.placed", job.Name) // told a moment after it is so; there is nothing to read before
	out, err := h.cl.Output(h.tb.Context(), client.OutputQuery{Alloc: muster.NewAllocID(muster.JobUID(job.UID), 0, 1), Stream: client.Stdout, Follow: true})
	if err != nil {
		h.tb.Fatal(err)
	}
	defer func() { _ = out.Close() }()
	if _, err := io.ReadFull(out, make([]byte, 1)); err != nil {
		h.tb.Fatalf("first byte of %s: %v", job.Name, err)
	}
	return time.Since(began), job
}

// hold starts a container that stays, and is its allocation.
func (h *host) hold(spec api.JobSpec) muster.AllocID {
	h.tb.Helper()
	_, job := h.firstByte(h.watch(), spec)
	return muster.NewAllocID(muster.JobUID(job.UID), 0, 1)
}

// instance is the directory of the only instance.
func (h *host) instance() string {
	h.tb.Helper()
	dirs, _ := filepath.Glob(filepath.Join(h.data, "*", "i-*"))
	if len(dirs) != 1 {
		h.tb.Fatalf("%d instances", len(dirs))
	}
	return dirs[0]
}

// lone is an agent without a server: what is measured on it is the node's own share.
type lone struct {
	b     *testing.B
	dir   string
	cl    *wire.Client
	image string
	pid   int
	sent  uint64
}

func newLone(b *testing.B) *lone {
	b.Helper()
	needContainers(b)
	needPrograms(b)
	top, err := os.MkdirTemp("", "me-")
	if err != nil {
		b.Fatal(err)
	}
	l := &lone{b: b, dir: filepath.Join(top, "i-"+filepath.Base(top))}
	if err := os.Mkdir(l.dir, 0o700); err != nil {
		b.Fatal(err)
	}
	file := filepath.Join(top, "busybox.tar")
	imagetest.WriteArchive(b, file, "busybox:latest", imagetest.Busybox(b))
	l.image = "docker-archive:" + file
	cmd := exec.Command(programs.node, "agent", "--dir", l.dir, "--node", "n1", "--cpu", "1000", "--memory", "64GiB", "--cgroup", "muster/"+filepath.Base(l.dir))
	cmd.Stderr, err = os.Create(filepath.Join(top, "log"))
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		b.Fatal(err)
	}
	l.pid = cmd.Process.Pid
	l.cl = wire.NewClient(journal.Dialer(l.dir))
	b.Cleanup(func() {
		l.cl.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if err := destroyInstance(l.dir); err != nil {
			b.Errorf("clean: %v", err)
		}
		if err := journal.RemoveTree(top); err != nil {
			b.Errorf("clean: %v", err)
		}
	})
	for deadline := time.Now().Add(patience); ; {
		if _, err = l.cl.Hello(b.Context()); err == nil {
			return l
		}
		if time.Now().After(deadline) {
			b.Fatal(err)
		}
		<-time.After(time.Millisecond)
	}
}

// firstByte starts a container and waits for the first byte of its stdout from the agent's socket.
func (l *lone) firstByte(mode muster.NetworkMode, command ...string) time.Duration {
	l.b.Helper()
	l.sent++
	id := muster.NewAllocID("bench", int(l.sent), 1)
	began := time.Now()
	l.send(wire.Desired{Allocs: []wire.DesiredAlloc{{ID: id, Desired: muster.AllocRun, Spec: &wire.AllocSpec{
		Namespace: "default", Job: "bench", JobUID: "bench", Version: 1, Index: int(l.sent), Count: 1, Attempt: 1,
		Template: api.Template{Command: command, Image: l.image, Network: string(mode)}, OutputLimit: 1 << 20,
		Resources: muster.Resources{CPU: 1000, Memory: 16 * muster.MiB},
	}}}})
	out, err := l.cl.Stream(l.b.Context(), id, wire.Stdout, 0, true)
	if err != nil {
		l.b.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 1)); err != nil {
		l.b.Fatalf("first byte of %s: %v", id, err)
	}
	took := time.Since(began)
	_, _ = io.Copy(io.Discard, out) // to its end
	_ = out.Close()
	return took
}

func (l *lone) send(d wire.Desired) {
	l.b.Helper()
	d.Fence = wire.Fence{Cluster: "bench", Epoch: 1, Term: 1, Index: l.sent}
	if _, err := l.cl.SendDesired(l.b.Context(), d); err != nil {
		l.b.Fatal(err)
	}
}

// pss is what a process has in memory for itself alone, with its share of what it has together with others, in KiB.
func pss(tb testing.TB, pid int) (kib int) {
	tb.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		tb.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if n, err := fmt.Sscanf(line, "Pss: %d", &kib); n == 1 && err == nil {
			return kib
		}
	}
	tb.Fatalf("process %d: no Pss", pid)
	return 0
}
