package ssh

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

// on runs a command of a shell where a host's files are.
func (l *lab) on(i instance, script string) string {
	l.t.Helper()
	pid, err := os.ReadFile(filepath.Join(l.dir, "machines", i.ID, "pid"))
	if err != nil {
		l.t.Fatal(err)
	}
	out, err := exec.Command("nsenter", "-t", strings.TrimSpace(string(pid)), "-m", "sh", "-c", script).CombinedOutput()
	if err != nil {
		l.t.Fatalf("%s: %v: %s", script, err, out)
	}
	return string(out)
}

// What goes wrong on hosts is seen in the CLI as what it is, and work is finished elsewhere: a link that is cut for less and for more than the
// grace, a full disk, a runtime that is removed.
func TestHostsThatFail(t *testing.T) {
	need(t)
	t.Parallel()
	keyFile, public := newKey(t)
	l := newLab(t, "10.217", public)
	hosts, lines := make([]instance, 6), ""
	for n := range hosts {
		hosts[n] = l.host(fmt.Sprint("fails", n)) // by that name a namespace of this machine is called
		lines += hostLine(fmt.Sprint("h", n), hosts[n], hosts[n].HostKeys[0])
		l.on(hosts[n], "mount -t tmpfs -o size=256m,mode=755 disk /var/lib/muster")
	}
	s := serve(t, staticProvider("lab", keyFile, lines), "- {name: lab, provider: lab, grace: 20s, boot_timeout: 30s, idle_timeout: 10m}")
	hostOf := func(node string) instance {
		name, _, _ := strings.Cut(s.node(node).Instance, "-")
		var n int
		if _, err := fmt.Sscanf(name, "h%d", &n); err != nil {
			t.Fatalf("instance %s", s.node(node).Instance)
		}
		return hosts[n]
	}
	shows := func(want string, args ...string) func() bool {
		match := regexp.MustCompile("(?m)" + want)
		return func() bool {
			out, _ := s.Run(args...)
			return match.MatchString(out)
		}
	}
	dir := t.TempDir()
	gate, ticks := filepath.Join(dir, "gate"), filepath.Join(dir, "ticks")
	waits := fmt.Sprintf("while ! test -e %s; do sleep 0.1; done; echo member $MUSTER_INDEX attempt $MUSTER_ATTEMPT", gate)
	submit := func(name string, count int, more, script string) {
		t.Helper()
		file := filepath.Join(dir, name+".yaml")
		job := fmt.Sprintf("name: %s\ncount: %d\nresources: {cpu: 1, memory: 64MiB}\ncommand: [sh, -c, %q]\n%s", name, count, script, more)
		if err := os.WriteFile(file, []byte(job), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, status := s.Run("run", "--detach", "-f", file); status != 0 {
			t.Fatal(out)
		}
	}
	// One node is left without work: its runtime is the one that is removed.
	submit("early", 1, "", "true")
	s.Until("a node is idle", func() bool { a := s.allocs("early"); return len(a) == 1 && a[0].Outcome == "succeeded" })
	idle := s.allocs("early")[0].Node
	l.on(hostOf(idle), "rm /var/lib/muster/nodes/*/bin/*")
	submit("fresh", 1, "", waits)
	s.Until("its node is seen without a runtime", shows(idle+" .* serving +unready .*runtime process does not work any more", "node", "list"))
	s.Until("it runs elsewhere", func() bool { return len(s.running("fresh")) == 1 })
	if a := s.allocs("fresh"); len(a) != 2 || a[0].Node != idle || a[0].Failure == nil || a[0].Failure.Class != "node" || a[1].Node == idle {
		t.Errorf("%+v", a)
	}

	submit("only", 1, "exclusive: true\n", fmt.Sprintf("while ! test -e %s; do echo $MUSTER_ATTEMPT >> %s; sleep 0.1; done", gate, ticks))
	submit("work", 2, "", waits)
	s.Until("all run", func() bool { return len(s.running("only")) == 1 && len(s.running("work")) == 2 })
	was, only := s.running("work"), s.running("only")[0]
	short, long, full := hostOf(was[0].Node), hostOf(only.Node), hostOf(was[1].Node)

	// Links are cut; nobody knows then what is on those nodes.
	l.link(short, "down")
	l.link(long, "down")
	l.on(full, "fallocate -l $(( $(stat -f -c '%a*%S' /var/lib/muster) - 2097152 )) /var/lib/muster/fill")
	s.Until("a full disk is seen", shows(was[1].Node+" .* serving +unready .*its disk is nearly full", "node", "list"))
	s.Until("lost is seen", shows(was[0].Node+" .* serving +lost .*cannot be reached", "node", "list"))
	s.Until("unreachable is seen", shows("^0 +unreachable +1 ", "job", "show", "work"))
	s.Until("unreachable is seen on the node", shows("only +0 +1 +unreachable", "node", "show", only.Node))
	l.link(short, "up")
	s.Until("good again", shows(was[0].Node+" .* serving +good", "node", "list"))
	if now := s.running("work")[0]; now.ID != was[0].ID || now.Unreachable {
		t.Errorf("%+v", now)
	}

	// Cut off for longer than the grace: elsewhere, and of what is exclusive never two at once.
	s.Until("it runs elsewhere", func() bool { a := s.running("only"); return len(a) == 1 && a[0].Attempt == 2 && a[0].Node != only.Node })
	s.Until("why is seen", shows("no contact for 20s", "node", "show", only.Node))
	s.Until("it has begun", func() bool { b, _ := os.ReadFile(ticks); return strings.HasSuffix(string(b), "2\n") })

	// N5: the host comes back as another node, cleared of what was there. It is the only one that is free.
	l.link(long, "up")
	submit("late", 1, "", waits)
	s.Until("the host is in use again", func() bool { return len(s.running("late")) == 1 })
	if now := s.running("late")[0]; hostOf(now.Node).ID != long.ID || now.Node == only.Node {
		t.Errorf("late is on node %s", now.Node)
	}
	if left := strings.TrimSpace(l.on(long, "ls -d /var/lib/muster/nodes/"+only.Node+" 2>/dev/null || true")); left != "" {
		t.Errorf("left: %s", left)
	}

	// Room again: good again. All is finished.
	l.on(full, "rm /var/lib/muster/fill")
	s.Until("good again", shows(was[1].Node+" .* serving +good", "node", "list"))
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"fresh", "only", "work", "late"} {
		s.Until(name+" has ended", func() bool {
			j, err := s.Client.Job(t.Context(), muster.JobKey{Namespace: muster.DefaultNamespace, Name: name})
			return err == nil && j.Stage == string(muster.JobEnded) && j.Outcome == "succeeded"
		})
	}
	if out := s.output("work"); strings.Count(out, "attempt 1") != 2 {
		t.Errorf("%s", out)
	}
	b, err := os.ReadFile(ticks)
	if err != nil || strings.Contains(string(b), "2\n1") {
		t.Errorf("two ran at once, or one after the other came back: %v", err)
	}
	turned := func(n *api.Node, kind string) bool {
		for _, e := range n.History {
			if e.Type == kind {
				return true
			}
		}
		return false
	}
	for node, kinds := range map[string][]string{was[0].Node: {"node.lost", "node.good"}, only.Node: {"node.lost", "node.terminating", "node.gone"}, idle: {"node.unready"}} {
		for _, kind := range kinds {
			if n := s.node(node); !turned(n, kind) {
				t.Errorf("the history of %s lacks %s: %+v", node, kind, n.History)
			}
		}
	}
}
