package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
)

// The demo's kind of job, and a server that is killed again and again under it.
func TestServerKilledDuringJob(t *testing.T) {
	t.Parallel()
	const members, kills = 24, 6
	h := newHost(t, func(c *api.ServerConfig) { c.Pools[0].Max = 2 }) // so that they run in waves
	dice := chance(t)
	j := h.journal()
	h.write("job.yaml", fmt.Sprintf(`
name: work
count: %d
command: [sh, -c, %q]
resources: {cpu: 1, memory: 32MiB}
`, members, j.script(`echo "one $MUSTER_INDEX"; sleep 0.$((MUSTER_INDEX%7+3)); echo "two $MUSTER_INDEX"`)))
	h.start()
	run := h.muster("run", "-f", h.path("job.yaml"))
	for k := range kills {
		// The first one comes while the job is being submitted and placed, the others while it runs.
		wait := time.Duration(dice.IntN(60)) * time.Millisecond
		if k > 0 {
			wait = time.Duration(dice.IntN(400)) * time.Millisecond
		}
		pause(wait)
		h.kill()
		t.Logf("killed %s after it was ready; %d lines in the journal", wait, len(j.lines()))
		h.start()
		run = h.resubmit(run, "work")
	}
	run.wait()
	run = h.resubmit(run, "work")
	run.says(0, fmt.Sprintf("all %d members succeeded", members))
	j.once(members)

	var want []string
	for i := range members {
		want = append(want, fmt.Sprintf("[%d] one %d", i, i), fmt.Sprintf("[%d] two %d", i, i))
	}
	slices.Sort(want)
	if got := run.stdout.lines(); !slices.Equal(got, want) {
		t.Errorf("muster run printed\n%s\nand on stderr\n%s", run.stdout, run.stderr)
	}
	h.stored("work")
	for _, a := range h.allocs("work") {
		if a.Attempt != 1 || a.Outcome != string(muster.OutcomeSucceeded) {
			t.Errorf("%+v", a)
		}
	}
	h.lostNone()
	h.idle()
	h.quiet()
}

// lostNone fails the test if any node was ever held for lost.
func (h *host) lostNone() {
	h.t.Helper()
	for ev, err := range h.client().Events(h.t.Context(), client.EventQuery{After: client.Oldest, Once: true}) {
		if err != nil {
			h.t.Fatal(err)
		}
		if strings.HasPrefix(ev.Type, "node.") && strings.Contains(ev.Text, "lost") {
			h.t.Errorf("%s: %s", ev.Type, ev.Text)
		}
	}
}

// quiet fails the test if the server has logged a warning or an error.
func (h *host) quiet(but ...string) {
	h.t.Helper()
	for line := range strings.Lines(h.log()) {
		bad := strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") || strings.Contains(line, "panic") || strings.Contains(line, "goroutine ")
		if bad && !slices.ContainsFunc(but, func(s string) bool { return strings.Contains(line, s) }) {
			h.t.Errorf("the server logged: %s", strings.TrimSpace(line))
		}
	}
}

// The exit code of a command comes through, whatever happened to the server meanwhile.
func TestExitCodeAfterServerKilled(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.start()
	run := h.muster("run", "--name", "seven", "--", "sh", "-c", "echo begin; while ! [ -e "+h.path("gate")+" ]; do sleep 0.02; done; echo end; exit 7")
	many := h.muster("run", "--name", "some", "--count", "3", "--", "sh", "-c", "while ! [ -e "+h.path("gate")+" ]; do sleep 0.02; done; exit $MUSTER_INDEX")
	h.running("seven", 1)
	h.running("some", 3)
	h.kill()
	h.write("gate", "") // all end while there is no server
	h.eventually("the commands have ended", func() bool {
		return !slices.ContainsFunc(touching(h.dir), func(p proc) bool { return strings.HasPrefix(p.command(), "sh -c") })
	})
	h.start()
	run.says(7)
	if got := run.stdout.String(); got != "begin\nend\n" {
		t.Errorf("%q", got)
	}
	many.says(1, "job some: failed: 1 of 3 members succeeded, 2 failed", "member 1, attempt 1 failed", "member 2, attempt 1 failed")
	h.idle()
	h.quiet()
}

// An hour is tested with a clock of its own (package health, package link); here a while is enough
// to be longer than anything that the server measures contact by but the grace.
func TestServerAwayForAWhile(t *testing.T) {
	t.Parallel()
	away := 20 * time.Second
	if testing.Short() {
		away = 3 * time.Second
	}
	h := newHost(t)
	h.start()
	run := h.muster("run", "--name", "long", "--count", "3", "--cpu", "1", "--", "sh", "-c", "echo pid $$; while ! [ -e "+h.path("gate")+" ]; do sleep 0.05; done")
	h.running("long", 3)
	before := h.nodes()
	h.kill()
	pause(away)
	h.start()
	h.eventually("the server is in touch with all nodes", func() bool {
		return h.metric("muster_links_up") == len(before)
	})
	h.running("long", 3)
	after := h.nodes()
	for i := range after {
		if i >= len(before) || after[i].ID != before[i].ID || after[i].Health != string(muster.NodeGood) || !after[i].Schedulable {
			t.Errorf("%d nodes before; now %+v", len(before), after[i])
		}
	}
	h.write("gate", "")
	run.says(0, "all 3 members succeeded")
	if a := h.allocs("long"); len(a) != 3 {
		t.Errorf("%+v", a)
	}
	h.lostNone()
	h.idle()
	h.quiet()
}

// SIGTERM ends the server and nothing else.
func TestTermLeavesSandboxesAlone(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.start()
	j := h.journal()
	run := h.muster("run", "--name", "long", "--", "sh", "-c", j.script("echo pid $$; while ! [ -e "+h.path("gate")+" ]; do sleep 0.02; done; echo over"))
	h.running("long", 1)
	var pid int
	h.eventually("the member has told its pid", func() bool {
		_, err := fmt.Sscanf(run.stdout.String(), "pid %d", &pid)
		return err == nil
	})
	p, ok := look(pid)
	if !ok {
		t.Fatal("the member is gone")
	}
	events := h.muster("events", "-f") // a stream that is open must not hold up the end
	h.eventually("events are told", func() bool { return strings.Contains(events.stdout.String(), "job long") })
	began := time.Now()
	if code := h.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("ending took %s", took)
	}
	if !h.logged("stopping; nodes and what runs on them stay") {
		t.Error("the log does not say so")
	}
	h.start()
	h.eventually("the server finds the member", func() bool {
		return h.metric("muster_links_up") == 1
	})
	if !p.alive() {
		t.Error("the member did not live on")
	}
	h.write("gate", "")
	run.says(0)
	j.once(1)
	h.eventually("events go on", func() bool { return strings.Contains(events.stdout.String(), "job long succeeded") })
	events.signal(syscall.SIGINT)
	events.says(130)
	h.idle()
	h.quiet()
}

// metric is a gauge or counter of the server without labels; -1 if it is not to be had.
func (h *host) metric(name string) int {
	h.t.Helper()
	body, err := h.client().Metrics(h.t.Context())
	if err != nil {
		return -1
	}
	defer func() { _ = body.Close() }()
	for line := range strings.Lines(readAll(h.t, body)) {
		var v float64
		if n, err := fmt.Sscanf(line, name+" %g", &v); n == 1 && err == nil {
			return int(v)
		}
	}
	return -1
}

func TestSecondServerIsRefused(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.start()
	before := must(os.ReadFile(filepath.Join(h.data, "server.json")))(t)
	for _, args := range [][]string{{"server", "-c", h.configFile()}, {"dev", "--data-dir", h.data, "--listen", "127.0.0.1:0"}} {
		p := newProgram(t, args...)
		p.cmd.Env = h.env()
		p.start()
		p.says(1, "data directory "+h.data+": in use by another server", fmt.Sprintf("process %d", h.srv.pid()))
		if n := strings.Count(p.stderr.String(), "\n"); n != 1 {
			t.Errorf("%d lines: %s", n, p.stderr)
		}
	}
	// The one that runs has not been disturbed.
	if after := must(os.ReadFile(filepath.Join(h.data, "server.json")))(t); string(after) != string(before) {
		t.Errorf("server.json: %s", after)
	}
	h.cli("run", "--", "echo", "hello").says(0)
	h.idle()
	h.quiet()
}

// An ephemeral server takes everything with it.
func TestDevLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(sig.String(), func(t *testing.T) {
			h := newHost(t)
			h.srv = h.launch("dev", "--listen", "127.0.0.1:0")
			h.eventually("dev is ready", func() bool { return h.logged("muster: ready at http://127.0.0.1:") || h.srv.ended() })
			// Nothing is told of where it is: other commands find it.
			run := newProgram(t, "run", "--patience", "100ms", "--", "sh", "-c", "echo begin; trap '' TERM; sleep 1000 & wait; sleep 1000")
			run.cmd.Env = h.env()
			run.start()
			h.eventually("the command runs", func() bool { return run.stdout.String() == "begin\n" })
			began := time.Now()
			if h.srv.signal(sig); h.srv.wait() != 0 {
				t.Errorf("exit code %d", h.srv.cmd.ProcessState.ExitCode())
			}
			t.Logf("it took %s to end", time.Since(began))
			run.says(3, "no server answers")
			for _, p := range touching(h.dir) {
				t.Errorf("left: process %d: %s", p.pid, p.command())
			}
			for _, e := range must(os.ReadDir(h.dir))(t) {
				if name := e.Name(); name != "server.log" && name != "config" {
					t.Errorf("left: %s", name)
				}
			}
			if h.has("config/muster/current.json") {
				t.Error("left: the note of where the server is")
			}
			h.quiet()
		})
	}
}

// kill -9 of an ephemeral server cannot take anything with it. What is left is
// one directory, on which another server ends it in an orderly way.
func TestDevKilled(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.srv = h.launch("dev", "--listen", "127.0.0.1:0")
	h.eventually("dev is ready", func() bool { return h.logged("muster: ready at http://127.0.0.1:") || h.srv.ended() })
	run := newProgram(t, "run", "-d", "--name", "long", "--", "sleep", "1000")
	run.cmd.Env = h.env()
	run.start()
	run.says(0)
	dirs := must(filepath.Glob(h.path("muster-*")))(t)
	if len(dirs) != 1 {
		t.Fatalf("%v", dirs)
	}
	h.data = dirs[0]
	h.running("long", 1)
	h.kill()
	h.start("dev", "--data-dir", h.data, "--listen", "127.0.0.1:0")
	h.running("long", 1)
	h.cli("job", "stop", "long").says(0)
	h.eventually("the job has ended", func() bool { return h.job("long").Stage == string(muster.JobEnded) })
	if code := h.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
