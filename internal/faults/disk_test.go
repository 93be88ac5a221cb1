package faults

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
)

const mib = 1 << 20

// smallDisk gives the host a data directory on a disk of its own.
func (h *host) smallDisk(size int64) {
	h.t.Helper()
	if os.Geteuid() != 0 {
		h.t.Skip("a disk that can be filled needs root")
	}
	if err := os.Mkdir(h.data, 0o700); err != nil {
		h.t.Fatal(err)
	}
	err := syscall.Mount("tmpfs", h.data, "tmpfs", 0, fmt.Sprintf("size=%d,mode=700", size))
	if errors.Is(err, syscall.EPERM) {
		h.t.Skip("a disk that can be filled needs the right to mount")
	}
	if err != nil {
		h.t.Fatal(err)
	}
	h.mounted = true
}

func (h *host) free() int64 {
	h.t.Helper()
	var st syscall.Statfs_t
	if err := syscall.Statfs(h.data, &st); err != nil {
		h.t.Fatal(err)
	}
	return int64(st.Bavail) * st.Bsize
}

// leave fills the disk, or empties it, until so much is free.
func (h *host) leave(free int64) {
	h.t.Helper()
	f := must(os.OpenFile(filepath.Join(h.data, "ballast"), os.O_CREATE|os.O_RDWR, 0o600))(h.t)
	defer func() { _ = f.Close() }()
	size := must(f.Stat())(h.t).Size() + h.free() - free
	if err := f.Truncate(max(size, 0)); err != nil {
		h.t.Fatal(err)
	}
	if err := syscall.Fallocate(int(f.Fd()), 0, 0, max(size, 1)); err != nil && !errors.Is(err, syscall.ENOSPC) {
		h.t.Fatal(err)
	}
	pause(200 * time.Millisecond) // the server knows the free space as it was up to 125 ms ago
}

func (h *host) makeRoom() {
	h.t.Helper()
	if err := os.Remove(filepath.Join(h.data, "ballast")); err != nil {
		h.t.Fatal(err)
	}
}

// stored is how much the blob store has.
func (h *host) blobBytes() (n int64) {
	_ = filepath.WalkDir(filepath.Join(h.data, "blobs"), func(_ string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			if info, err := d.Info(); err == nil {
				n += info.Size()
			}
		}
		return nil
	})
	return n
}

// Below the marks: first output is no longer brought to the blob store, then
// users' writes are refused; reads and what runs go on.
func TestDiskNearlyFull(t *testing.T) {
	t.Parallel()
	const mark = 60 * mib
	h := newHost(t, func(c *api.ServerConfig) { c.LowWater = mark })
	h.smallDisk(400 * mib)
	h.start()
	j := h.journal()
	// It prints for as long as it is told to: enough to be shipped again and again.
	run := h.muster("run", "--name", "talk", "--", "sh", "-c", j.script(`
i=0
while ! [ -e `+h.path("gate")+` ]; do i=$((i+1)); echo "line $i: 0123456789012345678901234567890123456789"; echo $i > `+h.path("count")+`; sleep 0.005; done`))
	h.eventually("output is stored while it is made", func() bool { return h.blobBytes() > 1000 })

	h.cli("run", "--detach", "--name", "idle", "--", "sleep", "1000").says(0)

	// Tight: there is room for writes, but output has to wait on its node.
	h.leave(mark * 5 / 4)
	h.cli("run", "--name", "tight", "--", "echo", "tight").says(0)
	// Whatever was on its way when it got tight has arrived by then.
	h.eventually("shipping stops", func() bool {
		before := h.blobBytes()
		pause(1500 * time.Millisecond)
		return h.blobBytes() == before
	})
	shipped := h.blobBytes()
	h.eventually("the log says so", func() bool { return strings.Contains(h.log(), "output stays on its node") })

	// Low: nothing that users want written.
	h.leave(mark * 3 / 4)
	for _, args := range [][]string{
		{"run", "--", "true"},
		{"run", "--input", h.configFile() + ":in", "--", "true"},
	} {
		p := h.cli(args...)
		p.says(1, "disk", h.data)
		t.Logf("%s: %s", p, strings.TrimSpace(p.stderr.String()))
	}
	_, err := h.client().Submit(t.Context(), api.JobSubmission{Spec: api.JobSpec{Template: api.Template{Command: []string{"true"}}}}, client.NewKey())
	var p *api.Problem
	if !errors.As(err, &p) || p.Status != 507 || p.Code != string(muster.FaultDiskLow) {
		t.Errorf("a submission: %v", err)
	}
	// What ends work is how one makes room.
	h.cli("job", "stop", "idle").says(0)
	h.eventually("the job is stopped", func() bool { return h.job("idle").Outcome == string(muster.JobStopped) })
	list := h.cli("job", "list")
	list.says(0)
	logs := h.cli("job", "logs", "talk")
	if logs.says(0); !strings.Contains(list.stdout.String(), "talk") || !strings.Contains(logs.stdout.String(), "line 1:") {
		t.Errorf("reads: %s\n%s", list.stdout, tail(logs.stdout.String(), 3))
	}
	if err := h.client().Live(t.Context()); err != nil {
		t.Error(err)
	}
	// What runs goes on, ends, and is told of.
	count := h.file("count")
	h.eventually("the member goes on", func() bool { return h.file("count") != count })
	if now := h.blobBytes(); now != shipped {
		t.Errorf("%d bytes were shipped to a disk that is nearly full", now-shipped)
	}
	h.write("gate", "")
	run.says(0)
	j.once(1)
	if want := talkedLines(h.file("count")); run.stdout.String() != want {
		t.Errorf("muster run printed %d bytes, want %d", len(run.stdout.String()), len(want))
	}
	if j := h.job("talk"); j.Outcome != string(muster.JobSucceeded) {
		t.Errorf("%+v", j)
	}

	// With room again all goes on, and the output is stored before its node goes.
	h.makeRoom()
	h.eventually("writes are taken again", func() bool { return h.cli("run", "-d", "--", "true").wait() == 0 })
	h.stored("talk")
	h.idle()
	after := h.cli("job", "logs", "talk")
	after.says(0)
	if after.stdout.String() != run.stdout.String() {
		t.Errorf("stored are %d bytes, printed were %d", len(after.stdout.String()), len(run.stdout.String()))
	}
	h.quiet("the disk is nearly full")
}

func talkedLines(count string) string {
	var b strings.Builder
	var n int
	_, _ = fmt.Sscan(count, &n)
	for i := range n {
		fmt.Fprintf(&b, "line %d: 0123456789012345678901234567890123456789\n", i+1)
	}
	return b.String()
}

// A disk that is full to the last byte ends the server with one sentence. What it
// had acknowledged is there when it is started with room again.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	h := newHost(t, func(c *api.ServerConfig) { c.LowWater = 1 })
	h.smallDisk(300 * mib)
	h.start()
	h.cli("run", "--name", "before", "--", "echo", "before").says(0)
	h.idle()
	h.leave(4 * mib) // enough for everything but another segment of the log
	// Large jobs that fit nowhere, so that they take room in the log and nothing else.
	env := map[string]string{}
	for i := range 6 {
		env[fmt.Sprintf("PAD%d", i)] = strings.Repeat("x", 120<<10)
	}
	cl := h.client().Patient(-1)
	var acknowledged []string
	for i := 0; i < 200 && !h.srv.ended(); i++ {
		name := fmt.Sprintf("big-%d", i)
		_, err := cl.Submit(t.Context(), api.JobSubmission{Spec: api.JobSpec{
			Name: name, Template: api.Template{Command: []string{"true"}, Resources: api.ResourcesSpec{CPU: 64}, Env: env},
		}}, client.NewKey())
		if err == nil {
			acknowledged = append(acknowledged, name)
			continue
		}
		t.Logf("%s: %v", name, err)
	}
	if code := h.srv.wait(); code != 74 {
		t.Errorf("exit code %d", code)
	}
	last := h.log()[strings.LastIndex(strings.TrimSpace(h.log()), "\n")+1:]
	t.Logf("%d jobs were acknowledged; then: %s", len(acknowledged), last)
	if !strings.HasPrefix(last, "muster: data directory "+h.data) || !strings.Contains(last, "no space left on device") || strings.Contains(h.log(), "goroutine ") {
		t.Errorf("its last words: %s", tail(h.log(), 20))
	}
	if n := strings.Count(h.log(), "no space left on device"); n != 1 {
		t.Errorf("it is said %d times:\n%s", n, tail(h.log(), 20))
	}

	// Started with a full disk it says the same, again and again.
	again := h.launch()
	if code := again.wait(); code != 74 && code != 1 {
		t.Errorf("exit code %d", code)
	}
	last = h.log()[strings.LastIndex(strings.TrimSpace(h.log()), "\n")+1:]
	t.Logf("started on a full disk: %s", last)
	if !strings.Contains(last, "no space left on device") || !strings.Contains(last, h.data) {
		t.Errorf("its last words: %s", tail(h.log(), 20))
	}

	h.makeRoom()
	h.start()
	if len(acknowledged) == 0 {
		t.Error("nothing was acknowledged: the log had no room from the start")
	}
	for _, name := range append(acknowledged, "before") {
		if _, err := h.client().Job(t.Context(), key(name)); err != nil {
			t.Errorf("acknowledged and lost: %s: %v", name, err)
		}
	}
	h.cli("run", "--", "echo", "after").says(0)
	h.idle()
}
