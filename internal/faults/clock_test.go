package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

// step sets the wall clock of this host's programs so far from the machine's.
func (h *host) step(offset time.Duration) {
	h.t.Helper()
	// As a whole: a reader must not find half of it.
	h.write("clock-offset.new", strconv.Itoa(int(offset/time.Second))+"\n")
	if err := os.Rename(h.path("clock-offset.new"), h.path("clock-offset")); err != nil {
		h.t.Fatal(err)
	}
}

// A step of the wall clock, either way, by an hour or a year, changes nothing but a warning: what runs goes on, claims and
// stored output stay, and what is due in a second is due in a second. So it is after the agent and after the server were
// killed under a clock that was set back.
func TestStepsOfTheClock(t *testing.T) {
	if !*clockFlag {
		t.Skip("run by make e2e-clock")
	}
	const hour, year = time.Hour, 365 * 24 * time.Hour
	h, image := newContainerHost(t)
	h.start()
	h.environment("e", image, 1)
	h.warm("e", 1)
	hourly := api.Duration(hour)
	claimed := h.claim(api.ClaimRequest{TTL: &hourly, Idle: &hourly})
	h.warm("e", 1)
	limited := h.muster("run", "--name", "limited", "--timeout", "2h", "--", "sleep", "100000")
	plain := h.muster("run", "--name", "plain", "--", "sleep", "100000")
	h.cli("run", "--name", "printed", "--", "echo", "kept").says(0)
	h.running("limited", 1)
	h.running("plain", 1)
	began := map[string]string{}
	for _, job := range []string{"limited", "plain"} {
		began[job] = h.allocs(job)[0].ID
	}
	runner := h.runner(claimed).ID

	n := 0
	goesOn := func(what string) {
		t.Helper()
		n++
		for job, id := range began {
			if all := h.allocs(job); len(all) != 1 || all[0].ID != id || all[0].Status != string(muster.AllocRunning) {
				t.Errorf("%s: job %s has the allocations %+v, and had %s", what, job, all, id)
			}
		}
		if x := h.execute(claimed, api.ExecRequest{Command: []string{"echo", "here"}}); x.Stdout != "here\n" || h.runner(claimed).ID != runner {
			t.Errorf("%s: the claimed runner says %+v", what, x)
		}
		if logs := h.cli("job", "logs", "printed"); logs.stdout.String() != "kept\n" {
			t.Errorf("%s: the stored output is %q, %s", what, logs.stdout, logs.stderr)
		}
		for _, node := range h.nodes() {
			if node.Stage == string(muster.NodeServing) && node.Health != string(muster.NodeGood) {
				t.Errorf("%s: node %s is %s: %s", what, node.ID, node.Health, node.Reason)
			}
		}
		// What is due comes: a new job's end, a time limit, a claim's life, a retry.
		h.cli("run", "--", "echo", "new").says(0)
		late := h.cli("run", "--timeout", "1s", "--", "sleep", "100000")
		if late.says(late.cmd.ProcessState.ExitCode(), "time limit"); late.cmd.ProcessState.Success() {
			t.Errorf("%s: a time limit of a second does not end a job", what)
		}
		short := api.Duration(time.Second)
		brief := h.claim(api.ClaimRequest{TTL: &short})
		h.eventually(what+": a claim of a second expires", func() bool {
			_, err := h.client().RunExec(t.Context(), muster.AllocID(brief.ID), api.ExecRequest{Command: []string{"true"}})
			return err != nil
		})
		tried := h.path(fmt.Sprint("tried", n))
		h.cli("run", "--attempts", "2", "--on", "any", "--", "sh", "-c", "[ -e "+tried+" ] && exit 0; touch "+tried+"; exit 1").says(0)
		h.warm("e", 1)
	}
	goesOn("before any step")
	for _, offset := range []time.Duration{hour, 0, year, hour, -hour, -year} {
		h.step(offset)
		pause(time.Second) // every loop has looked at the clock by then
		goesOn(fmt.Sprint("with the clock ", offset, " off"))
	}
	log := h.log()
	for _, direction := range []string{"clock was set ahead", "clock was set back"} {
		if told := strings.Count(log, direction); told == 0 || told > 6 {
			t.Errorf("the log says %d times that the %s", told, direction)
		}
	}

	// Each agent that has lasting work is replaced, and then the server, under a clock that is a year behind.
	lasting := map[string]bool{h.instanceOf(claimed): true, h.instanceOf(h.allocs("limited")[0]): true, h.instanceOf(h.allocs("plain")[0]): true}
	for dir := range lasting {
		before := h.theAgent(dir)
		if p, err := os.FindProcess(before.Pid); err != nil || p.Kill() != nil {
			t.Fatalf("agent %d of %s cannot be killed: %v", before.Pid, filepath.Base(dir), err)
		}
		h.anotherAgent(dir, before)
	}
	h.eventually("there is contact again", func() bool {
		for _, node := range h.nodes() {
			if node.Stage == string(muster.NodeServing) && node.Health != string(muster.NodeGood) {
				return false
			}
		}
		return true
	})
	h.step(hour)
	pause(time.Second)
	goesOn("after the agents were killed")
	h.step(-year)
	pause(time.Second)
	h.kill()
	h.start()
	goesOn("after the server was killed")

	for name, p := range map[string]*program{"limited": limited, "plain": plain} {
		h.cli("job", "stop", name).says(0)
		p.wait()
	}
	h.endRunners()
}
