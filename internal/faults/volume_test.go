package faults

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/internal/agent/journal"
)

// Generous bounds of what the processes may have in memory at any time.
const (
	serverMemory = 600 * mib
	agentMemory  = 300 * mib
)

// heavy notes how much memory server and agents have had at most; the
// returned function fails the test if that is too much.
func (h *host) heavy() func() {
	h.t.Helper()
	stop, done := make(chan struct{}), make(chan int64)
	go func() {
		var most int64
		for {
			for _, dir := range h.instanceDirs() {
				if r, err := journal.ReadRecord(dir); err == nil && r.Alive() {
					_, hwm := memory(r.Pid)
					most = max(most, hwm)
				}
			}
			select {
			case <-stop:
				done <- most
				return
			case <-time.After(200 * time.Millisecond):
			}
		}
	}()
	return func() {
		h.t.Helper()
		_, server := memory(h.srv.pid())
		close(stop)
		agents := <-done
		h.t.Logf("at most in memory: server %s, an agent %s", muster.Bytes(server), muster.Bytes(agents))
		if server > serverMemory || agents > agentMemory {
			h.t.Errorf("at most in memory: server %s of %s, an agent %s of %s", muster.Bytes(server), muster.Bytes(serverMemory), muster.Bytes(agents), muster.Bytes(agentMemory))
		}
	}
}

func TestManyMembers(t *testing.T) {
	t.Parallel()
	members := scale(300, 3000, 10000)
	h := newHost(t)
	h.start()
	weigh := h.heavy()
	began := time.Now()
	run := h.muster("run", "--name", "many", "--count", fmt.Sprint(members), "--cpu", "0.1", "--memory", "16MiB", "--", "true")
	if run.waitFor(10*patience) != 0 || run.stdout.String() != "" || !strings.Contains(run.stderr.String(), fmt.Sprintf("all %d members succeeded", members)) {
		t.Errorf("%d: %s", run.cmd.ProcessState.ExitCode(), run.stderr)
	}
	took := time.Since(began)
	t.Logf("%d members in %s: %.0f/s", members, took.Round(time.Millisecond), float64(members)/took.Seconds())
	if j := h.job("many"); j.Counts.Succeeded != members {
		t.Errorf("%+v", j.Counts)
	}
	n := 0
	for a, err := range h.client().AllJobAllocs(t.Context(), key("many"), client.AllocQuery{}) {
		if err != nil {
			t.Fatal(err)
		}
		if n++; a.Attempt != 1 || a.Outcome != string(muster.OutcomeSucceeded) {
			t.Errorf("%+v", a)
		}
	}
	if n != members {
		t.Errorf("%d allocations", n)
	}
	weigh()
	h.idle()
	// All of it is there after a restart, and it starts quickly.
	h.kill()
	began = time.Now()
	h.start()
	t.Logf("ready again after %s", time.Since(began).Round(time.Millisecond))
	if j := h.job("many"); j.Counts.Succeeded != members || j.Outcome != string(muster.JobSucceeded) {
		t.Errorf("%+v", j)
	}
	h.quiet()
}

// A job may be of a megabyte, and each of its members has all of that.
func TestLargeJobFile(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.start()
	weigh := h.heavy()
	const files, size = 15, 64 << 10
	var b strings.Builder
	members := scale(4, 40, 400)
	fmt.Fprintf(&b, "name: large\ncount: %d\nresources: {cpu: 0.1, memory: 16MiB}\ncommand: [sh, -c, 'cat in-* | wc -c']\ninputs:\n", members)
	for i := range files {
		fmt.Fprintf(&b, "  - path: in-%d\n    content: %q\n", i, strings.Repeat(string(rune('a'+i)), size))
	}
	h.write("large.yaml", b.String())
	run := h.muster("run", "-f", h.path("large.yaml"))
	run.says(0, fmt.Sprintf("all %d members succeeded", members))
	if n := strings.Count(run.stdout.String(), fmt.Sprintf("] %d\n", files*size)); n != members {
		t.Errorf("%d members of %d had all: %s", n, members, tail(run.stdout.String(), 5))
	}
	weigh()

	// A little more is too much, and told before anything is done.
	fmt.Fprintf(&b, "  - {path: one-more, content: %q}\n  - {path: two-more, content: %q}\n", strings.Repeat("x", size), strings.Repeat("y", size))
	h.write("larger.yaml", b.String())
	larger := h.cli("run", "-f", h.path("larger.yaml"))
	larger.says(2, "1MiB")
	t.Logf("%s", tail(larger.stderr.String(), 3))
	h.write("flood.yaml", "name: flood\ncommand: [true]\n"+strings.Repeat("# nothing but words\n", 1<<20))
	flood := h.cli("run", "-f", h.path("flood.yaml"))
	t.Logf("a file of %d MiB: %d %s", 20, flood.cmd.ProcessState.ExitCode(), tail(flood.stderr.String(), 3))
	h.idle()
	h.quiet()
}

// digest is what a program printed, without keeping it.
type digest struct {
	hash.Hash
	n int64
}

func newDigest() *digest { return &digest{Hash: sha256.New()} }

func (d *digest) Write(p []byte) (int, error) {
	d.n += int64(len(p))
	return d.Hash.Write(p)
}

func (d *digest) String() string {
	return fmt.Sprintf("%d bytes, %s", d.n, hex.EncodeToString(d.Sum(nil)[:8]))
}

// floodScript prints n bytes that are not the same everywhere.
func floodScript(n int) string { return fmt.Sprintf("seq 1 100000000 | head -c %d", n) }

func flooded(t *testing.T, n int, w io.Writer) {
	t.Helper()
	cmd := exec.Command("sh", "-c", floodScript(n))
	cmd.Stdout = w
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
}

// A hundred megabytes of one member come back whole, live and when its node is gone.
func TestLargeOutput(t *testing.T) {
	t.Parallel()
	size := scale(5, 100, 2000) * 1000 * 1000
	h := newHost(t)
	h.start()
	weigh := h.heavy()
	want := newDigest()
	flooded(t, size, want)
	live := newDigest()
	began := time.Now()
	run := newProgram(t, "--data-dir", h.data, "run", "-q", "--name", "large", "--output-limit", "4GiB", "--", "sh", "-c", floodScript(size))
	run.cmd.Env, run.cmd.Stdout = h.env(), live
	run.start()
	if code := run.waitFor(10 * patience); code != 0 {
		t.Errorf("%d: %s", code, run.stderr)
	}
	t.Logf("followed in %s", time.Since(began).Round(time.Millisecond))
	h.stored("large")
	t.Logf("stored after %s", time.Since(began).Round(time.Millisecond))
	weigh()
	h.idle()
	stored := newDigest()
	logs := newProgram(t, "--data-dir", h.data, "job", "logs", "large")
	logs.cmd.Env, logs.cmd.Stdout = h.env(), stored
	logs.start()
	logs.says(0)
	if live.String() != want.String() || stored.String() != want.String() || logs.stderr.String() != "" {
		t.Errorf("want %s; followed %s; stored %s; %s", want, live, stored, logs.stderr)
	}
	// A part in the middle, and the end.
	al := h.allocs("large")[0]
	if al.Output.StdoutBytes != int64(size) || al.Output.Dropped != 0 {
		t.Errorf("%+v", al.Output)
	}
	o := must(h.client().Output(t.Context(), client.OutputQuery{Alloc: muster.AllocID(al.ID), Stream: client.Stdout, Tail: 1000}))(t)
	end := readAll(t, o)
	_ = o.Close()
	last := &lastBytes{n: 1000}
	flooded(t, size, last)
	if end != string(last.b) {
		t.Errorf("the end is %q", end)
	}
	h.quiet()
}

// lastBytes keeps the end of what is written to it.
type lastBytes struct {
	n int
	b []byte
}

func (l *lastBytes) Write(p []byte) (int, error) {
	l.b = append(l.b, p...)
	if over := len(l.b) - l.n; over > 0 {
		l.b = append(l.b[:0], l.b[over:]...)
	}
	return len(p), nil
}

// What is more than output_limit is dropped from its beginning, and that is told.
func TestOutputOverItsLimit(t *testing.T) {
	t.Parallel()
	size := scale(5, 100, 500) * 1000 * 1000
	const limit = 1 << 20
	h := newHost(t)
	h.start()
	weigh := h.heavy()
	run := h.muster("run", "--name", "over", "--output-limit", "1MiB", "--", "sh", "-c", floodScript(size)+"; echo end")
	run.says(0)
	weigh()
	h.stored("over")
	h.idle()
	al := h.allocs("over")[0]
	total := int64(size) + 4
	kept := total - al.Output.Dropped
	t.Logf("%+v: %s kept", al.Output, muster.Bytes(kept))
	if al.Output.StdoutBytes != total || kept < limit/2 || kept > limit {
		t.Errorf("%+v: %s kept of a limit of %s", al.Output, muster.Bytes(kept), muster.Bytes(limit))
	}
	logs := h.cli("job", "logs", "over")
	logs.says(0, fmt.Sprintf("the oldest %s of its stdout were dropped (output_limit)", muster.Bytes(al.Output.Dropped)))
	t.Logf("%s", strings.TrimSpace(logs.stderr.String()))
	want := &lastBytes{n: int(kept) - 4}
	flooded(t, size, want)
	if got := logs.stdout.String(); got != string(want.b)+"end\n" {
		t.Errorf("%d bytes are kept, want the last %d; they end with %q", len(got), kept, tail(got, 2))
	}
	// Who followed it live was told of what went by unseen.
	if int64(len(run.stdout.String())) < total && !strings.Contains(run.stderr.String(), "were dropped (output_limit)") {
		t.Errorf("muster run printed %d of %d bytes and said: %s", len(run.stdout.String()), total, run.stderr)
	}
	if !strings.HasSuffix(run.stdout.String(), "end\n") {
		t.Errorf("muster run ended with %q", tail(run.stdout.String(), 2))
	}
	h.quiet()
}

// Lines are counted, put behind their member's number, and kept in order.
func TestManyShortLines(t *testing.T) {
	t.Parallel()
	lines := scale(20_000, 500_000, 5_000_000) // of each of two members
	h := newHost(t)
	h.start()
	weigh := h.heavy()
	out := must(os.Create(h.path("out")))(t)
	run := newProgram(t, "--data-dir", h.data, "run", "--name", "lines", "--count", "2", "--", "seq", "1", fmt.Sprint(lines))
	run.cmd.Env, run.cmd.Stdout = h.env(), out
	run.start()
	began := time.Now()
	if code := run.waitFor(10 * patience); code != 0 {
		t.Errorf("%d: %s", code, run.stderr)
	}
	t.Logf("followed in %s", time.Since(began).Round(time.Millisecond))
	weigh()
	_ = out.Close()
	next := [2]int{1, 1}
	f := must(os.Open(h.path("out")))(t)
	defer func() { _ = f.Close() }()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		var index, line int
		if n, err := fmt.Sscanf(sc.Text(), "[%d] %d", &index, &line); n != 2 || err != nil || index > 1 || line != next[index] {
			t.Fatalf("%q; expected %v", sc.Text(), next)
		}
		next[index]++
	}
	if next != [2]int{lines + 1, lines + 1} {
		t.Errorf("up to %v", next)
	}
	h.stored("lines")
	h.idle()
	var want bytes.Buffer
	for i := range lines {
		fmt.Fprintln(&want, i+1)
	}
	logs := h.cli("job", "logs", "lines", "--index", "1")
	logs.says(0)
	if logs.stdout.String() != want.String() {
		t.Errorf("stored: %d bytes, want %d", len(logs.stdout.String()), want.Len())
	}
	h.quiet()
}

// Many jobs at once are as good as one with many members.
func TestManyJobs(t *testing.T) {
	t.Parallel()
	jobs := scale(50, 300, 2000)
	h := newHost(t)
	h.start()
	weigh := h.heavy()
	cl := h.client()
	began := time.Now()
	errs := make(chan error, jobs)
	tokens := make(chan struct{}, 32)
	for i := range jobs {
		tokens <- struct{}{}
		go func() {
			defer func() { <-tokens }()
			_, err := cl.Submit(t.Context(), api.JobSubmission{Spec: api.JobSpec{
				Name: fmt.Sprintf("one-%d", i), Template: api.Template{Command: []string{"sh", "-c", "echo $MUSTER_JOB"}, Resources: api.ResourcesSpec{CPU: 0.1, Memory: 16 * mib}},
			}}, client.NewKey())
			errs <- err
		}()
	}
	for range jobs {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	h.eventually("all jobs have ended", func() bool {
		live := must(cl.Jobs(t.Context(), client.JobQuery{Stage: muster.JobLive, Limit: 1}))(t)
		return len(live.Jobs) == 0
	})
	t.Logf("%d jobs in %s", jobs, time.Since(began).Round(time.Millisecond))
	n := 0
	for j, err := range cl.AllJobs(t.Context(), client.JobQuery{}) {
		if err != nil {
			t.Fatal(err)
		}
		if n++; j.Outcome != string(muster.JobSucceeded) {
			t.Errorf("%+v", j)
		}
	}
	if n != jobs {
		t.Errorf("%d jobs of %d are there", n, jobs)
	}
	last := fmt.Sprintf("one-%d", jobs-1)
	if logs := h.cli("job", "logs", last); logs.stdout.String() != last+"\n" {
		t.Errorf("%q", logs.stdout)
	}
	weigh()
	h.idle()
	h.quiet()
}
