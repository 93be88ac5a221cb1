package faults

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

// What cannot be started says so in a sentence that names it, with the exit code that shells have for it.
func TestCannotStart(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.start()
	h.write("plain", "no program")
	if err := os.WriteFile(h.path("script"), []byte("#!/no/such/interpreter\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args   []string
		code   int
		class  muster.FailureClass
		reason muster.Reason
		says   []string
		tries  int
	}{
		"not-found":      {[]string{"--", "no-such-program"}, 127, muster.FailureUser, muster.ReasonCommandNotFound, []string{`"no-such-program" was not found`}, 1},
		"not-found-path": {[]string{"--", h.path("none")}, 127, muster.FailureUser, muster.ReasonCommandNotFound, []string{h.path("none")}, 1},
		"not-executable": {[]string{"--", h.path("plain")}, 126, muster.FailureUser, muster.ReasonNotExecutable, []string{h.path("plain"), "cannot be executed"}, 1},
		"no-interpreter": {[]string{"--", h.path("script")}, 126, muster.FailureUser, muster.ReasonNotExecutable, []string{h.path("script")}, 1},
		"no-workdir":     {[]string{"--workdir", h.path("none"), "--", "true"}, 1, muster.FailureUser, muster.ReasonNoWorkdir, []string{"work directory", h.path("none")}, 1},
		// Tried again it would be the same, whatever the user's policy says.
		"retried": {[]string{"--on", "any", "--attempts", "3", "--", "no-such-program"}, 127, muster.FailureUser, muster.ReasonCommandNotFound, []string{"no-such-program"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			run := h.cli(append([]string{"run", "--name", name}, c.args...)...)
			run.says(c.code, c.says...)
			t.Logf("%s", strings.TrimSpace(run.stderr.String()))
			all := h.allocs(name)
			if len(all) != c.tries {
				t.Errorf("%d attempts, want %d", len(all), c.tries)
			}
			var nodes []string
			for _, a := range all {
				if a.Failure == nil || a.Failure.Class != string(c.class) || a.Failure.Reason != string(c.reason) {
					t.Errorf("%+v", a.Failure)
				}
				if slices.Contains(nodes, a.Node) {
					t.Errorf("tried again on node %s", a.Node)
				}
				nodes = append(nodes, a.Node)
			}
			if j := h.job(name); j.Outcome != string(muster.JobFailed) || !strings.Contains(j.Reason, c.says[len(c.says)-1]) {
				t.Errorf("the job says %q", j.Reason)
			}
		})
	}
	h.idle()
	h.quiet()
}

// A job that could run nowhere fails at once and says what it is short of, and makes no node.
func TestFitsNowhere(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.start()
	for name, c := range map[string]struct {
		args []string
		says []string
	}{
		"cpu":      {[]string{"--cpu", "5"}, []string{"needs 5 cpu", "the largest offering, large, has 4 cpu"}},
		"memory":   {[]string{"--memory", "5GiB", "--count", "1000"}, []string{"needs 5GiB memory", "large", "4GiB memory"}},
		"disk":     {[]string{"--disk", "1TiB"}, []string{"needs 1TiB disk", "large", "4GiB disk"}},
		"offering": {[]string{"--cpu", "2", "--constraint", "offering=small"}, []string{"needs 2 cpu", "meets its constraints", "small", "1 cpu"}},
		"os":       {[]string{"--constraint", "os=plan9"}, []string{"no offering meets os = plan9"}},
		"pool":     {[]string{"--pool", "other"}, []string{"no pool other is configured"}},
	} {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			run := h.cli(append(append([]string{"run", "--name", name}, c.args...), "--", "true")...)
			run.says(1, c.says...)
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("it took %s", took)
			}
			t.Logf("%s", strings.TrimSpace(run.stderr.String()))
			if j := h.job(name); j.Stage != string(muster.JobEnded) || j.Outcome != string(muster.JobFailed) {
				t.Errorf("%+v", j)
			}
			h.write("job.yaml", fmt.Sprintf("name: %s\ncommand: [true]\n%s", name, specOf(c.args)))
			h.cli("job", "validate", h.path("job.yaml")).says(1, c.says...)
		})
	}
	if nodes := h.nodes(); len(nodes) > 0 {
		t.Errorf("%+v", nodes)
	}
	// One that fits after all is not held up by them.
	h.cli("run", "--cpu", "4", "--memory", "4GiB", "--constraint", "os=linux", "--", "true").says(0)
	h.idle()
	h.quiet()
}

// specOf writes the flags of the test above as a job file would have them.
func specOf(args []string) string {
	var b strings.Builder
	resources := map[string]bool{"--cpu": true, "--memory": true, "--disk": true}
	for i := 0; i < len(args); i += 2 {
		value := args[i+1]
		switch {
		case resources[args[i]]:
			fmt.Fprintf(&b, "resources: {%s: %s}\n", strings.TrimPrefix(args[i], "--"), value)
		case args[i] == "--constraint":
			name, want, _ := strings.Cut(value, "=")
			fmt.Fprintf(&b, "constraints: [{attribute: %s, value: %s}]\n", name, want)
		default:
			fmt.Fprintf(&b, "%s: %s\n", strings.TrimPrefix(args[i], "--"), value)
		}
	}
	return b.String()
}

// A node's program that is not there is the operator's mistake: the server says which one, and goes on when it is.
func TestNodeBinaryMissing(t *testing.T) {
	t.Parallel()
	h := newHost(t, func(c *api.ServerConfig) { c.Pools[0].Max = 2 })
	h.node = h.path("muster-node")
	h.start()
	run := h.muster("run", "--", "echo", "hello")
	h.eventually("the server says what is missing", func() bool { return h.logged("no such file or directory") && h.logged(h.node) })
	if err := os.Symlink(programs.node, h.node); err != nil {
		t.Fatal(err)
	}
	// The provider is asked again by itself after a minute: TestInvalidRequestIsMadeAgain. An operator need not wait for that.
	h.muster("pool", "resume", "main").says(0)
	run.says(0)
	if n := strings.Count(h.log(), "level=WARN") + strings.Count(h.log(), "level=ERROR"); n > 10 {
		t.Errorf("%d warnings:\n%s", n, h.log())
	}
	h.idle()
}
