package httpapi

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/musterhq/muster/api"
)

// kill counts processes that the kernel has killed for want of memory.
func (in *insideBench) kill(n int64) {
	in.inits.mu.Lock()
	defer in.inits.mu.Unlock()
	in.inits.stats.OOMKills += n
}

// An execution has ended for want of memory if the kernel killed something since it began that explains no other's end.
func TestOutOfMemoryIsOfOneExecution(t *testing.T) {
	in := newInside(t)
	own := func(when string) {
		t.Helper()
		if got := in.run(shell("kill -9 $$")); got.ExitCode != 137 || got.Reason != "" {
			t.Errorf("its own kill -9, %s: %+v", when, got)
		}
	}
	killed := func(end api.ExecEnd, yes bool) {
		t.Helper()
		if end.ExitCode != 137 || strings.Contains(end.Reason, "out of memory") != yes {
			t.Errorf("%+v, want %v", end, yes)
		}
	}
	touch := func(name string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(in.work, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	waits := func(name string) string { return "while [ ! -e " + name + " ]; do sleep 0.01; done; kill -9 $$" }

	in.kill(3) // of the runner's own command, before anybody came
	own("after others were killed")

	a, b := in.open(t, shell(waits("a"))), in.open(t, shell(waits("b")))
	a.started()
	b.started()
	in.kill(2)
	touch("a")
	killed(a.ended(), true)
	touch("b")
	killed(b.ended(), true) // each had one
	own("after two were killed at once")

	a, b = in.open(t, shell(waits("c"))), in.open(t, shell(waits("d")))
	a.started()
	b.started()
	in.kill(1)
	touch("c")
	killed(a.ended(), true)
	touch("d")
	killed(b.ended(), false) // there was but one

	r := shell(waits("e"))
	r.Detach, r.ID = true, "late"
	x := in.open(t, r)
	x.started()
	_ = x.c.CloseNow()
	in.kill(1)
	touch("e")
	in.eventually("it has ended", func() bool { return !get[api.Execution](in.bench, in.path+"/executions/late").Running })
	x = in.open(t, api.ExecAttach{Attach: "late"})
	x.started()
	killed(x.ended(), true)
	own("after one that was joined late")

	// Another server knows nothing of it, and says nothing that may be wrong.
	var err error
	if in.api, err = in.parts.build(); err != nil {
		t.Fatal(err)
	}
	in.srv = in.serve()
	x = in.open(t, api.ExecAttach{Attach: "late"})
	x.started()
	killed(x.ended(), false)
}

// An execution may have several clients. All are told the same of its end, and it takes one kill.
func TestOutOfMemoryIsToldToAllClients(t *testing.T) {
	in := newInside(t)
	r := shell("while [ ! -e go ]; do sleep 0.01; done; kill -9 $$")
	r.Detach, r.ID = true, "shared"
	x := in.open(t, r)
	x.started()
	joined := in.open(t, api.ExecAttach{Attach: "shared"})
	joined.started()
	in.kill(1)
	if err := os.WriteFile(filepath.Join(in.work, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	late := func() api.ExecEnd {
		l := in.open(t, api.ExecAttach{Attach: "shared"})
		l.started()
		return l.ended()
	}
	for who, end := range map[string]api.ExecEnd{"the first": x.ended(), "one that has joined": joined.ended(), "one that comes late": late()} {
		if !strings.Contains(end.Reason, "out of memory") {
			t.Errorf("%s is told %+v", who, end)
		}
	}
	if end := in.run(shell("kill -9 $$")); end.ExitCode != 137 || end.Reason != "" {
		t.Errorf("another one's own kill -9: %+v", end)
	}
}

// Kills that have explained another execution's end explain no more, also where the agent does not tell what was before.
func TestOutOfMemoryOfAnAgentThatDoesNotTell(t *testing.T) {
	in := newInside(t)
	in.inits.mu.Lock()
	in.inits.untold = true
	in.inits.mu.Unlock()
	x := in.open(t, shell("while [ ! -e go ]; do sleep 0.01; done; kill -9 $$"))
	x.started()
	in.kill(1)
	if err := os.WriteFile(filepath.Join(in.work, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if end := x.ended(); !strings.Contains(end.Reason, "out of memory") {
		t.Errorf("%+v", end)
	}
	if end := in.run(shell("kill -9 $$")); end.ExitCode != 137 || end.Reason != "" {
		t.Errorf("its own kill -9: %+v", end)
	}
}

// Executions are counted by how they ended.
func TestExecutionsAreCounted(t *testing.T) {
	in := newInside(t)
	for _, script := range []string{"exit 0", "exit 0", "exit 3", "kill -TERM $$"} {
		if a := in.do("POST", in.path+"/exec", `{"command": ["sh", "-c", "`+script+`"]}`); a.StatusCode != 200 {
			t.Fatalf("%s: %d %s", script, a.StatusCode, a.body)
		}
	}
	if a := in.do("POST", in.path+"/exec", `{"command": ["sleep", "10"], "timeout": "50ms"}`); a.StatusCode != 200 {
		t.Fatalf("%d %s", a.StatusCode, a.body)
	}
	text := in.do("GET", "/metrics", "").body
	for _, want := range []string{`{result="exit-0"} 2`, `{result="other-exit"} 1`, `{result="signal"} 1`, `{result="time-out"} 1`, `{result="out-of-memory"} 0`} {
		if !strings.Contains(text, "muster_executions_total"+want+"\n") {
			t.Errorf("no %s in the metrics", want)
		}
	}
}
