package faults

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/agent/journal"
)

// While instances are made, boot, get work and are given back, the server is
// killed again and again: none is leaked, none is made twice, and no job is lost.
func TestServerKilledDuringFleetWork(t *testing.T) {
	t.Parallel()
	kills, jobs := scale(4, 12, 100), 3
	h := newHost(t, func(c *api.ServerConfig) {
		c.Pools[0].Max, c.Pools[0].IdleTimeout = 3, api.Duration(200*time.Millisecond)
		for i := range c.Providers[0].Offerings {
			c.Providers[0].Offerings[i].BootDelay = api.Duration(150 * time.Millisecond)
		}
	})
	dice := chance(t)
	h.start()
	j := h.journal()
	n := 0
	for k := range kills {
		for range jobs {
			p := h.cli("run", "-d", "--name", fmt.Sprintf("job-%d", n), "-e", fmt.Sprintf("N=%d", n), "--", "sh", "-c",
				strings.ReplaceAll(j.script("sleep 0.1"), "$MUSTER_INDEX", "$N"))
			p.says(0)
			n++
		}
		pause(time.Duration(dice.IntN(600)) * time.Millisecond)
		if dirs := len(h.instanceDirs()); dirs > 3 {
			t.Errorf("%d instances in a pool of 3", dirs)
		}
		h.kill()
		if k%3 == 2 { // what is on the way while there is no server ends by itself
			pause(time.Duration(dice.IntN(400)) * time.Millisecond)
		}
		h.start()
	}
	h.eventually("all jobs have ended", func() bool {
		for i := range n {
			if h.job(fmt.Sprintf("job-%d", i)).Stage != string(muster.JobEnded) {
				return false
			}
		}
		return true
	})
	for i := range n {
		if got := h.job(fmt.Sprintf("job-%d", i)); got.Outcome != string(muster.JobSucceeded) {
			t.Errorf("%+v", got)
		}
	}
	j.once(n)
	h.idle()
	h.eventually("all nodes are gone", func() bool {
		return !slices.ContainsFunc(h.nodes(), func(n api.Node) bool { return n.Stage != string(muster.NodeGone) })
	})
	h.quiet()
}

// A lot of output, with server and agent killed while it is made, followed and
// stored: every byte comes once, to the follower and to the blob store.
func TestOutputWithEverythingKilled(t *testing.T) {
	t.Parallel()
	rounds := scale(3, 8, 60)
	h := newHost(t)
	dice := chance(t)
	h.start()
	// Some 300 kB at once, then a moment of rest, until it is told to stop.
	script := `i=0; while ! [ -e ` + h.path("gate") + ` ]; do i=$((i+1)); seq $((i*50000)) $((i*50000+49999)); sleep 0.05; done; echo $i > ` + h.path("count")
	live := newDigest()
	run := newProgram(t, "--data-dir", h.data, "run", "-q", "--name", "torrent", "--output-limit", "4GiB", "--", "sh", "-c", script)
	run.cmd.Env, run.cmd.Stdout = h.env(), live
	run.start()
	h.running("torrent", 1)
	dir := h.theInstance()
	for r := range rounds {
		pause(time.Duration(dice.IntN(400)) * time.Millisecond)
		if r%2 == 0 {
			h.kill()
		}
		if r%3 != 1 {
			if rec, err := journal.ReadRecord(dir); err == nil {
				if err := rec.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if r%2 == 0 {
			h.start()
		}
	}
	h.write("gate", "")
	if code := run.wait(); code != 0 {
		t.Errorf("%d: %s", code, run.stderr)
	}
	var count int
	if _, err := fmt.Sscan(h.file("count"), &count); err != nil {
		t.Fatal(err)
	}
	want := newDigest()
	for i := 50000; i < (count+1)*50000; i++ {
		fmt.Fprintln(want, i)
	}
	h.stored("torrent")
	h.idle()
	stored := newDigest()
	logs := newProgram(t, "--data-dir", h.data, "job", "logs", "torrent")
	logs.cmd.Env, logs.cmd.Stdout = h.env(), stored
	logs.start()
	logs.says(0)
	t.Logf("%s", want)
	if live.String() != want.String() || stored.String() != want.String() {
		t.Errorf("made %s, followed %s, stored %s\n%s", want, live, stored, run.stderr)
	}
	if a := h.allocs("torrent"); len(a) != 1 {
		t.Errorf("%+v", a)
	}
	h.lostNone()
	h.quiet()
}

// A member has succeeded when its declared outputs are stored, whoever is killed
// meanwhile; and its inputs are what was uploaded.
func TestFilesWithServerKilled(t *testing.T) {
	t.Parallel()
	const members = 6
	h := newHost(t)
	dice := chance(t)
	h.start()
	j := h.journal()
	noise := make([]byte, 3*mib)
	for i := range noise {
		noise[i] = byte(dice.Uint32())
	}
	h.write("noise", string(noise))
	h.write("files.yaml", fmt.Sprintf(`
name: files
count: %d
resources: {cpu: 0.5, memory: 32MiB}
command: [sh, -c, %q]
inputs: [{path: in, file: noise}]
outputs: [{path: out}]
`, members, j.script("mkdir out; cp in out/copy; echo $MUSTER_INDEX > out/index")))
	run := h.muster("run", "-f", h.path("files.yaml"))
	for range 5 {
		pause(time.Duration(dice.IntN(150)) * time.Millisecond)
		h.kill()
		h.start()
		run = h.resubmit(run, "files")
	}
	run.wait()
	run = h.resubmit(run, "files")
	run.says(0, fmt.Sprintf("all %d members succeeded", members))
	j.once(members)
	h.idle()
	h.cli("job", "fetch", "files", "--dest", h.path("got")).says(0)
	for i := range members {
		at := filepath.Join("got", fmt.Sprint(i), "out")
		if h.file(filepath.Join(at, "index")) != fmt.Sprintf("%d\n", i) || h.file(filepath.Join(at, "copy")) != string(noise) {
			t.Errorf("member %d: its outputs are not what it made", i)
		}
	}
	h.quiet()
}

// Whoever follows may go away in any manner: the job goes on.
func TestFollowerKilled(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.start()
	j := h.journal()
	run := h.muster("run", "--name", "long", "--", "sh", "-c", h.gated(j)+"echo done")
	h.running("long", 1)
	run.kill()
	again := h.muster("job", "logs", "-f", "long")
	h.write("gate", "")
	again.says(0)
	if again.stdout.String() != "done\n" {
		t.Errorf("%q", again.stdout)
	}
	j.once(1)
	if got := h.job("long"); got.Outcome != string(muster.JobSucceeded) {
		t.Errorf("%+v", got)
	}
	h.idle()
	h.quiet()
}

// Ctrl-C while the server is away stops the job when it is back.
func TestInterruptedWhileServerIsAway(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.start()
	run := h.muster("run", "--name", "long", "--kill-grace", "100ms", "--", "sh", "-c", "trap 'echo told; exit 0' TERM; echo begin; while :; do sleep 0.02; done")
	h.eventually("it runs", func() bool { return run.stdout.String() == "begin\n" })
	h.kill()
	run.signal(syscall.SIGINT)
	h.eventually("it says that it stops the job", func() bool { return strings.Contains(run.stderr.String(), "stopping job long") })
	h.start()
	run.says(130)
	if run.stdout.String() != "begin\ntold\n" {
		t.Errorf("%q", run.stdout)
	}
	if got := h.job("long"); got.Outcome != string(muster.JobStopped) || got.Reason == "" {
		t.Errorf("%+v", got)
	}
	h.idle()
	h.quiet()
}

// An agent that hangs is replaced like one that is dead.
func TestAgentHangs(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it takes as long as an agent may be silent")
	}
	h := newHost(t)
	h.start()
	j := h.journal()
	run := h.muster("run", "--name", "long", "--", "sh", "-c", h.gated(j)+"echo done")
	h.running("long", 1)
	dir := h.theInstance()
	hung := h.theAgent(dir)
	if err := syscall.Kill(hung.Pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	h.eventually("another agent runs", func() bool {
		r, err := journal.ReadRecord(dir)
		return err == nil && r.Boot != hung.Boot && r.Alive()
	})
	t.Logf("replaced after %s", time.Since(began).Round(time.Millisecond))
	h.write("gate", "")
	run.says(0)
	j.once(1)
	if run.stdout.String() != "done\n" {
		t.Errorf("%q", run.stdout)
	}
	if a := h.allocs("long"); len(a) != 1 {
		t.Errorf("%+v", a)
	}
	h.idle()
	h.quiet()
}

// A pool that has room for fewer nodes than a member may fail on does not keep it waiting for ever.
func TestNoStartInSmallPool(t *testing.T) {
	t.Parallel()
	h, image := newContainerHost(t, func(c *api.ServerConfig) { c.Pools[0].Max, c.Pools[0].IdleTimeout = 2, api.Duration(time.Hour) })
	h.stagesOf(realRuntime(t), slices.Repeat([]string{"before"}, 20)...)
	h.start()
	run := h.cli("run", "--name", "image", "--image", image, "--", "true")
	run.says(1, "attempt 5 failed: start the sandbox")
	if a := h.allocs("image"); len(a) != 5 {
		t.Errorf("%d attempts", len(a))
	}
	h.quiet()
}
