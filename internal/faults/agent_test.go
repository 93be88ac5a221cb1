package faults

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/agent/initbox"
	"github.com/musterhq/muster/internal/agent/journal"
)

// theInstance is the directory of the only instance.
func (h *host) theInstance() string {
	h.t.Helper()
	dirs := h.instanceDirs()
	if len(dirs) != 1 {
		h.t.Fatalf("%d instances: %v", len(dirs), dirs)
	}
	return dirs[0]
}

// theAgent is the agent of an instance. On a busy machine one that was just started may be replaced
// by another before it answers.
func (h *host) theAgent(dir string) (r journal.Record) {
	h.t.Helper()
	h.eventually("an agent of "+dir+" lives", func() bool {
		var err error
		r, err = journal.ReadRecord(dir)
		return err == nil && r.Alive()
	})
	return r
}

// members are the processes of all sandboxes of an instance.
func (h *host) members(dir string) []initbox.Member {
	h.t.Helper()
	var all []initbox.Member
	for _, d := range must(journal.SandboxDirs(dir))(h.t) {
		all = append(all, must(initbox.Members(d))(h.t)...)
	}
	return all
}

// talker prints a lot, slowly enough that agents can be killed under it: what it
// prints depends on nothing but its pid, which is the first line.
const talker = `
echo $$
i=0
while [ $i -lt 300 ]; do
	i=$((i+1))
	echo "line $i of the output"
	echo "line $i of the errors" >&2
	sleep 0.01
done
exit 9
`

func talked(pid int) (stdout, stderr string) {
	var o, e strings.Builder
	fmt.Fprintln(&o, pid)
	for i := range 300 {
		fmt.Fprintf(&o, "line %d of the output\n", i+1)
		fmt.Fprintf(&e, "line %d of the errors\n", i+1)
	}
	return o.String(), e.String()
}

// An agent that is killed is started again, and nothing of the sandbox is lost; the
// server may be killed with it.
func TestAgentKilled(t *testing.T) {
	t.Parallel()
	for _, both := range []bool{false, true} {
		name := map[bool]string{false: "alone", true: "with the server"}[both]
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			dice := chance(t)
			h.start()
			run := h.muster("run", "--name", "talk", "--", "sh", "-c", talker)
			h.running("talk", 1)
			dir := h.theInstance()
			var pid int
			h.eventually("it prints", func() bool {
				n, _ := fmt.Sscan(run.stdout.String(), &pid)
				return n == 1
			})
			p, ok := look(pid)
			if !ok {
				t.Fatalf("process %d is gone", pid)
			}
			kills := 0
			for ; kills < 4 && p.alive(); kills++ {
				pause(time.Duration(dice.IntN(500)) * time.Millisecond)
				before := h.theAgent(dir)
				if both {
					h.kill()
				}
				if err := before.Kill(); err != nil {
					t.Fatal(err)
				}
				if both {
					h.start()
				}
				killed := time.Now()
				h.eventually("another agent runs", func() bool {
					r, err := journal.ReadRecord(dir)
					return err == nil && r.Boot != before.Boot && r.Alive()
				})
				t.Logf("agent again after %s; sandbox alive: %v", time.Since(killed).Round(time.Millisecond), p.alive())
			}
			if kills < 2 {
				t.Errorf("only %d agents could be killed", kills)
			}
			stdout, stderr := talked(pid)
			run.says(9)
			if run.stdout.String() != stdout {
				t.Errorf("muster run printed on stdout:\n%s", run.stdout)
			}
			if got := told(run.stderr.String()); got != stderr {
				t.Errorf("muster run printed on stderr:\n%s", got)
			}
			h.stored("talk")
			all := h.allocs("talk")
			if len(all) != 1 || all[0].ExitCode == nil || *all[0].ExitCode != 9 {
				t.Errorf("%+v", all)
			}
			// The node may have been lost for a moment: its agents were killed as soon as they answered. What
			// counts is that nothing was replaced.
			h.idle() // the node is gone, its output is not
			logs := h.cli("job", "logs", "talk")
			logs.says(0)
			if logs.stdout.String() != stdout || told(logs.stderr.String()) != stderr {
				t.Errorf("muster job logs:\n%s\n%s", logs.stdout, logs.stderr)
			}
			h.quiet()
		})
	}
}

// told is what a command itself said on stderr, without the lines of muster run.
func told(stderr string) string {
	var b strings.Builder
	for line := range strings.Lines(stderr) {
		if !strings.HasPrefix(line, "muster: ") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// A new muster-node takes the place of running agents, and nothing that runs notices.
func TestAgentReplaced(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.start()
	j := h.journal()
	run := h.muster("run", "--name", "long", "--count", "2", "--", "sh", "-c", j.script("echo begin; while ! [ -e "+h.path("gate")+" ]; do sleep 0.02; done; echo end"))
	h.running("long", 2)
	before := map[string][]initbox.Member{}
	for _, dir := range h.instanceDirs() {
		before[dir] = h.members(dir)
		if n := len(before[dir]); n < 2 {
			t.Fatalf("%s: %d processes", dir, n)
		}
	}
	for k, version := range []string{nextVersion, programs.version} {
		// The server goes in both manners.
		if k == 0 {
			h.stop()
		} else {
			h.kill()
		}
		if h.node = programs.next; k == 1 {
			h.node = programs.node
		}
		h.start()
		defer func() {
			if t.Failed() {
				t.Logf("%+v", h.nodes())
			}
		}()
		h.eventually("all agents are of "+version, func() bool {
			return !slices.ContainsFunc(h.nodes(), func(n api.Node) bool { return n.AgentVersion != version || n.Health != string(muster.NodeGood) })
		})
		for dir, members := range before {
			if r := h.theAgent(dir); r.Version != version {
				t.Errorf("%s: %+v", dir, r)
			}
			for _, m := range members {
				// Shells come and go with their sleeps; init and command stay.
				if m.Role != initbox.RoleDescendant && !slices.Contains(h.members(dir), m) {
					t.Errorf("%s: %+v is gone", dir, m)
				}
			}
		}
	}
	h.write("gate", "")
	run.says(0, "all 2 members succeeded")
	j.once(2)
	if got := run.stdout.lines(); !slices.Equal(got, []string{"[0] begin", "[0] end", "[1] begin", "[1] end"}) {
		t.Errorf("%s", run.stdout)
	}
	for _, a := range h.allocs("long") {
		if a.Attempt != 1 || a.Outcome != string(muster.OutcomeSucceeded) {
			t.Errorf("%+v", a)
		}
	}
	h.idle()
	h.quiet()
}

// Everything of an instance is killed: the agent, inits and commands.
func TestInstanceKilled(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.start()
	// Four members on two nodes: two die with their node.
	j := h.journal()
	run := h.muster("run", "--name", "work", "--count", "2", "--cpu", "4", "--memory", "64MiB", "--", "sh", "-c",
		`echo "$MUSTER_INDEX $MUSTER_ATTEMPT" >> `+h.path("starts")+`; `+j.script("echo attempt $MUSTER_ATTEMPT; while ! [ -e "+h.path("gate")+" ]; do sleep 0.02; done"))
	h.running("work", 2)
	victim := h.allocs("work")[0]
	var dir string
	for _, d := range h.instanceDirs() {
		if h.theAgent(d).Node == muster.NodeID(victim.Node) {
			dir = d
		}
	}
	all := touching(dir)
	if len(all) < 3 {
		t.Fatalf("%d processes in %s", len(all), dir)
	}
	killed := time.Now()
	for _, p := range all {
		p.kill()
	}
	h.eventually("the member runs elsewhere", func() bool { return strings.Contains(h.file("starts"), "0 2") })
	took := time.Since(killed)
	t.Logf("killed %d processes; the member ran again after %s", len(all), took.Round(time.Millisecond))
	if took > 20*time.Second {
		t.Errorf("it took %s to replace it", took)
	}
	h.running("work", 2)
	h.write("gate", "")
	run.says(0, "all 2 members succeeded", "member 0, attempt 1 ")

	allocs := h.allocs("work")
	if len(allocs) != 3 {
		t.Fatalf("%+v", allocs)
	}
	lost, again, other := allocs[0], allocs[1], allocs[2]
	if lost.Outcome != string(muster.OutcomeLost) || lost.Failure == nil || lost.Failure.Class != string(muster.FailureNode) {
		t.Errorf("the lost one: %+v %+v", lost, lost.Failure)
	}
	t.Logf("it says: %+v; output %s: %s", lost.Failure, lost.Output.State, lost.Output.Why)
	// One attempt is all that the job's restart policy allows: a node's failure takes none of it.
	if again.Attempt != 2 || again.Outcome != string(muster.OutcomeSucceeded) || again.Node == lost.Node {
		t.Errorf("again: %+v", again)
	}
	if other.Attempt != 1 || other.Outcome != string(muster.OutcomeSucceeded) {
		t.Errorf("the other one: %+v", other)
	}
	node := must(h.client().Node(t.Context(), muster.NodeID(lost.Node)))(t)
	if node.Stage != string(muster.NodeGone) || node.Reason == "" {
		t.Errorf("%+v", node)
	}
	t.Logf("node: %s: %s", node.Stage, node.Reason)
	h.idle()
}

// Output is of bytes: what is no text comes back as it went in.
func TestBinaryOutput(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.start()
	// Every byte there is, and then a lot that does not compress or end in a line.
	script := `i=0; while [ $i -lt 256 ]; do printf "\\$(printf %03o $i)"; i=$((i+1)); done; head -c 3000001 ` + h.path("noise")
	noise := make([]byte, 3<<20)
	dice := chance(t)
	for i := range noise {
		noise[i] = byte(dice.Uint32())
	}
	h.write("noise", string(noise))
	want := make([]byte, 0, 4<<20)
	for i := range 256 {
		want = append(want, byte(i))
	}
	want = append(want, noise[:3000001]...)
	run := h.cli("run", "-q", "--name", "bits", "--", "sh", "-c", script)
	run.says(0)
	h.idle()
	for _, p := range []*program{run, h.cli("job", "logs", "bits")} {
		if got := []byte(p.stdout.String()); !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes %x, want %d bytes %x", p, len(got), sha256.Sum256(got), len(want), sha256.Sum256(want))
		}
	}
	if files := must(filepath.Glob(filepath.Join(h.data, "blobs", "*")))(t); len(files) == 0 {
		t.Error("nothing is in the blob store")
	}
	h.quiet()
}
