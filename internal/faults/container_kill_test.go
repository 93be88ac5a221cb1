package faults

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/internal/agent/journal"
)

// untilGate prints lines on both streams until there is a file /gate, and then how many.
const untilGate = `i=0; until [ -e /gate ]; do i=$((i+1)); echo "line $i"; echo "error $i" >&2; sleep 0.02; done; echo $i; exit 9`

// counted are the lines of untilGate.
func counted(n int) (stdout, stderr string) {
	var o, e strings.Builder
	for i := range n {
		fmt.Fprintf(&o, "line %d\n", i+1)
		fmt.Fprintf(&e, "error %d\n", i+1)
	}
	fmt.Fprintln(&o, n)
	return o.String(), e.String()
}

// checkCounted fails the test unless a run of untilGate came through whole.
func checkCounted(t *testing.T, run *program) {
	t.Helper()
	run.says(9)
	lines := strings.Split(strings.TrimSuffix(run.stdout.String(), "\n"), "\n")
	n := 0
	_, _ = fmt.Sscan(lines[len(lines)-1], &n)
	stdout, stderr := counted(n)
	if n == 0 || run.stdout.String() != stdout || told(run.stderr.String()) != stderr {
		t.Errorf("%s: its %d lines are not whole:\n%s\n%s", run, n, tail(run.stdout.String(), 20), tail(run.stderr.String(), 20))
	}
}

// lasting is a script that prints for a while, and what it prints.
const lasting = `i=0; while [ $i -lt 150 ]; do i=$((i+1)); echo "detached $i"; sleep 0.02; done; exit 7`

func lasted() string {
	var b strings.Builder
	for i := range 150 {
		fmt.Fprintf(&b, "detached %d\n", i+1)
	}
	return b.String()
}

// checkLasting fails the test unless a detached run of lasting can be read whole, and again from its middle.
func (h *host) checkLasting(a api.Alloc, id string) {
	h.t.Helper()
	want := lasted()
	for _, from := range []int{0, 1000} {
		got, end := h.attach(a, id, int64(from))
		if got != want[from:] || end.ExitCode != 7 {
			h.t.Errorf("%s from %d: %d bytes, want %d; %+v\n%s", id, from, len(got), len(want)-from, end, tail(got, 5))
		}
	}
}

// A container goes on when the agent is killed under it, and so does what was started in it detached; the next
// agent finds both.
func TestContainerAgentKilled(t *testing.T) {
	t.Parallel()
	h, image := newContainerHost(t)
	dice := chance(t)
	h.start()
	run, a := h.container("talk", image, nil, "sh", "-c", untilGate)
	init := h.initOf(a)
	h.detach(a, "long", lasting)
	dir := h.theInstance()
	for range 3 {
		pause(durationUpTo(dice, 300))
		// Whoever is attached meanwhile is told, and does not wait for ever.
		e, err := h.client().Exec(t.Context(), muster.AllocID(a.ID), api.ExecRequest{Command: []string{"sh", "-c", "echo begin; exec sleep 1001"}})
		if err != nil {
			t.Fatal(err)
		}
		if _, data, err := e.Next(); err != nil || string(data) != "begin\n" {
			t.Fatalf("%q %v", data, err)
		}
		before := h.theAgent(dir)
		if err := before.Kill(); err != nil {
			t.Fatal(err)
		}
		if _, _, err := e.Next(); err == nil || err == io.EOF {
			t.Errorf("an execution whose agent was killed: %v, %+v", err, e.End())
		} else {
			t.Logf("an attached client is told: %v", err)
		}
		_ = e.Close()
		h.anotherAgent(dir, before)
		if got := h.execAgain(a, "cat", "/proc/1/comm"); got != "init\n" {
			t.Errorf("inside process 1 is %q", got)
		}
	}
	h.eventually("what nobody is attached to has ended", func() bool { return !strings.Contains(h.inside(a, "ps"), "sleep 1001") })
	h.checkLasting(a, "long")
	if !init.alive() {
		t.Error("the container did not live on")
	}
	h.open(a, "/gate")
	checkCounted(t, run)
	if all := h.allocs("talk"); len(all) != 1 || all[0].ExitCode == nil || *all[0].ExitCode != 9 {
		t.Errorf("%+v", all)
	}
	h.nothingLeft()
	h.quiet()
}

// anotherAgent waits for the one that takes the place of a dead one.
func (h *host) anotherAgent(dir string, before journal.Record) {
	h.t.Helper()
	h.eventually("another agent runs", func() bool {
		r, err := journal.ReadRecord(dir)
		return err == nil && r.Boot != before.Boot && r.Alive()
	})
}

// durationUpTo is a random while of less than so many milliseconds.
func durationUpTo(dice *rand.Rand, ms int) time.Duration {
	return time.Duration(dice.IntN(ms)) * time.Millisecond
}

// execAgain runs a command in a container whose agent has just been started again.
func (h *host) execAgain(a api.Alloc, command ...string) (out string) {
	h.t.Helper()
	h.eventually("executions can be started again", func() bool {
		var err error
		if out, err = h.tryInside(a, command...); err != nil {
			if code := problem(err); code != string(muster.FaultUnavailable) && code != "sandbox" && code != "not-running" {
				h.t.Fatalf("exec %q: %v", command, err)
			}
		}
		return err == nil
	})
	return out
}

// The server is killed while commands run in a container. Who is attached is told; what is detached goes on, and who follows it misses nothing.
func TestContainerServerKilled(t *testing.T) {
	t.Parallel()
	h, image := newContainerHost(t)
	h.start()
	run, a := h.container("talk", image, nil, "sh", "-c", untilGate)
	attached := h.muster("exec", "talk", "--", "sh", "-c", "echo begin; exec sleep 1002")
	h.detach(a, "long", lasting)
	follows := h.muster("exec", "--attach", "long", "talk")
	h.eventually("both print", func() bool {
		return attached.stdout.String() == "begin\n" && strings.Contains(follows.stdout.String(), "detached 3\n")
	})
	h.kill()
	attached.says(3, "muster: ")
	t.Logf("an attached client is told: %s", attached.stderr)
	h.start()
	if code := follows.wait(); code != 7 || follows.stdout.String() != lasted() {
		t.Errorf("%s: exit code %d, %d bytes of %d\n%s", follows, code, len(follows.stdout.String()), len(lasted()), follows.stderr)
	}
	h.checkLasting(a, "long")
	h.eventually("what nobody is attached to has ended", func() bool { return !strings.Contains(h.inside(a, "ps"), "sleep 1002") })
	h.open(a, "/gate")
	checkCounted(t, run)
	h.lostNone()
	h.nothingLeft()
	h.quiet()
}

// The init of a container is killed from outside: the node's fault, and the member runs elsewhere.
func TestContainerInitKilled(t *testing.T) {
	t.Parallel()
	h, image := newContainerHost(t)
	h.start()
	run, a := h.container("work", image, nil, "sh", "-c", `[ $MUSTER_ATTEMPT = 2 ] && exit 0; exec sleep 1003`)
	h.detach(a, "beside", "exec sleep 1003")
	ended := make(chan error, 1)
	e, err := h.client().Exec(t.Context(), muster.AllocID(a.ID), api.ExecRequest{Command: []string{"sleep", "1003"}})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_, _, err := e.Next()
		ended <- err
	}()
	h.initOf(a).kill()
	run.says(0)
	select {
	case err := <-ended:
		if err == nil || err == io.EOF {
			t.Errorf("an execution whose init was killed: %v, %+v", err, e.End())
		}
		t.Logf("an attached client is told: %v", err)
	case <-time.After(patience):
		t.Error("an execution whose init was killed: nobody tells its client")
	}
	_ = e.Close()
	all := h.allocs("work")
	if len(all) != 2 || all[0].Node == all[1].Node || all[1].Outcome != string(muster.OutcomeSucceeded) {
		t.Fatalf("%+v", all)
	}
	t.Logf("it says: %s", failed(t, all[0], muster.FailureNode, muster.ReasonSandboxDied))
	if _, err := h.tryInside(a, "true"); problem(err) != "ended" || !client.IsGone(err) {
		t.Errorf("exec in what has ended: %v", err)
	}
	h.nothingLeft()
	h.quiet()
}

// Everything of an instance is killed at once: agent, inits, commands.
func TestContainerInstanceKilled(t *testing.T) {
	t.Parallel()
	h, image := newContainerHost(t)
	h.start()
	run, a := h.container("work", image, nil, "sh", "-c", `[ $MUSTER_ATTEMPT = 2 ] && exit 0; exec sleep 1004`)
	node := must(h.client().Node(t.Context(), muster.NodeID(a.Node)))(t)
	inside := inCgroups([]string{node.Instance})
	if len(inside) < 2 {
		t.Fatalf("%d processes in the sandbox", len(inside))
	}
	killAtOnce(slices.Concat(touching(h.theInstance()), inside))
	run.says(0)
	all := h.allocs("work")
	// Whether the instance was held for gone, or an agent came back to it first and found the sandbox dead, is a race. Both are the node's.
	if len(all) != 2 || all[0].Node == all[1].Node || all[0].Failure == nil || all[0].Failure.Class != string(muster.FailureNode) || all[1].Outcome != string(muster.OutcomeSucceeded) {
		t.Fatalf("%+v", all)
	}
	t.Logf("%s: %+v", all[0].Outcome, *all[0].Failure)
	h.nothingLeft()
}

// Killed at once, and nobody comes back: what is left is what the server's next life clears away.
func TestContainerEverythingKilled(t *testing.T) {
	t.Parallel()
	h, image := newContainerHost(t)
	h.start()
	run, a := h.container("work", image, nil, "sh", "-c", `[ $MUSTER_ATTEMPT = 2 ] && exit 0; exec sleep 1005`)
	node := must(h.client().Node(t.Context(), muster.NodeID(a.Node)))(t)
	inside := inCgroups([]string{node.Instance})
	h.kill()
	killAtOnce(slices.Concat(touching(h.theInstance()), inside))
	h.start()
	run.says(0)
	if all := h.allocs("work"); len(all) != 2 || all[1].Outcome != string(muster.OutcomeSucceeded) {
		t.Errorf("%+v", all)
	}
	h.nothingLeft()
}

// Clients that vanish without a word take what they are attached to with them, and nothing else.
func TestContainerClientsVanish(t *testing.T) {
	t.Parallel()
	h, image := newContainerHost(t)
	h.start()
	run, a := h.container("work", image, nil, "sleep", "1006")
	var attached []*program
	for range 8 {
		attached = append(attached, h.muster("exec", "work", "--", "sh", "-c", "echo begin; exec sleep 1007"))
	}
	h.detach(a, "stays", "exec sleep 1008")
	for _, p := range attached {
		h.eventually("they run", func() bool { return p.stdout.String() == "begin\n" })
	}
	for _, p := range attached {
		p.kill()
	}
	h.eventually("they have ended inside", func() bool { return !strings.Contains(h.inside(a, "ps"), "sleep 1007") })
	if ps := h.inside(a, "ps"); !strings.Contains(ps, "sleep 1006") || !strings.Contains(ps, "sleep 1008") {
		t.Errorf("inside runs:\n%s", ps)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := h.client().SignalExecution(ctx, muster.AllocID(a.ID), "stays", "KILL"); err != nil {
		t.Error(err)
	}
	if _, end := h.attach(a, "stays", 0); end.ExitCode != 137 || end.Signal != "SIGKILL" {
		t.Errorf("%+v", end)
	}
	h.cli("job", "stop", "work").says(0)
	run.wait()
	h.nothingLeft()
	h.quiet()
}
