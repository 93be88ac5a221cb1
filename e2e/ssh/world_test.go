package ssh

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/internal/remote"
	"github.com/musterhq/muster/internal/servertest"
)

// enabled lets the tests run: they take a minute, make network namespaces and need root.
var enabled = flag.Bool("ssh.run", false, "run the tests on hosts of this machine (make e2e-ssh)")

// need skips the test where its hosts cannot be made.
func need(t *testing.T) {
	t.Helper()
	if !*enabled {
		t.Skip("run by make e2e-ssh")
	}
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	for _, tool := range []string{"/usr/sbin/sshd", "ip", "jq", "unshare", "nsenter", "ssh-keygen"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not installed", tool)
		}
	}
	if out, err := exec.Command("ip", "netns", "list").CombinedOutput(); err != nil {
		t.Skipf("no network namespaces here: %v: %s", err, out)
	}
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// lab makes hosts by the provider of docs/providers.md, as an operator with machines would.
type lab struct {
	t       *testing.T
	dir     string
	network string
	public  string // the key that is let in
}

func newLab(t *testing.T, network, public string) *lab {
	l := &lab{t: t, dir: t.TempDir(), network: network, public: public}
	t.Cleanup(func() {
		// Whatever has failed before: nothing of it stays on this machine.
		for _, i := range l.list() {
			l.ask(map[string]any{"op": "destroy", "owner": i.Tags["muster-owner"], "destroy": []string{i.ID}})
		}
	})
	return l
}

func (l *lab) env() []string {
	return []string{"CLOUD_DIR=" + l.dir, "CLOUD_NET=" + l.network, "CLOUD_KEY=" + l.public}
}

// instance is one as the program answers.
type instance struct {
	ID       string            `json:"id"`
	Tags     map[string]string `json:"tags"`
	Address  string            `json:"address"`
	HostKeys []string          `json:"host_keys"`
}

func (l *lab) ask(request map[string]any) []byte {
	l.t.Helper()
	request["version"], request["provider"] = 1, "lab"
	in, err := json.Marshal(request)
	if err != nil {
		l.t.Fatal(err)
	}
	cmd := exec.Command(absolute(l.t, "../../docs/examples/provider-netns.sh"))
	cmd.Stdin = bytes.NewReader(in)
	cmd.Env = append(os.Environ(), l.env()...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		l.t.Fatalf("%s: %v: %s", in, err, stderr.String())
	}
	return out
}

// host makes one.
func (l *lab) host(name string) instance {
	l.t.Helper()
	var answer struct {
		Results []struct{ Instance *instance }
	}
	out := l.ask(map[string]any{"op": "create", "owner": "operator", "create": []any{map[string]any{
		"token": name, "offering": "small", "market": "on-demand", "tags": map[string]string{"muster-owner": "operator", "muster-token": name},
	}}})
	if err := json.Unmarshal(out, &answer); err != nil || len(answer.Results) != 1 || answer.Results[0].Instance == nil {
		l.t.Fatalf("%s, %v", out, err)
	}
	return *answer.Results[0].Instance
}

// list is all there is, of every owner.
func (l *lab) list() []instance {
	var all []instance
	files, _ := filepath.Glob(filepath.Join(l.dir, "instances", "*.json"))
	for _, f := range files {
		var i instance
		if b, err := os.ReadFile(f); err == nil && json.Unmarshal(b, &i) == nil {
			all = append(all, i)
		}
	}
	return all
}

// link turns a host's network on or off: from here, as a switch would.
func (l *lab) link(i instance, up string) {
	l.t.Helper()
	number, err := os.ReadFile(filepath.Join(l.dir, "machines", i.ID, "number"))
	if err != nil {
		l.t.Fatal(err)
	}
	_, last, _ := strings.Cut(l.network, ".")
	if out, err := exec.Command("ip", "link", "set", "mv"+last+"-"+strings.TrimSpace(string(number)), up).CombinedOutput(); err != nil {
		l.t.Fatalf("%v: %s", err, out)
	}
}

// kill ends a host as a power cut does: all its processes at once.
func (l *lab) kill(i instance) {
	l.t.Helper()
	pids, err := exec.Command("ip", "netns", "pids", i.ID).Output()
	if err != nil {
		l.t.Fatal(err)
	}
	for _, p := range strings.Fields(string(pids)) {
		if pid, err := strconv.Atoi(p); err == nil {
			if process, err := os.FindProcess(pid); err == nil {
				_ = process.Kill() // some of them are gone with another one
			}
		}
	}
}

// kept is the directory that the host has for Muster.
func (l *lab) kept(i instance) string { return filepath.Join(l.dir, "machines", i.ID, "muster") }

// server is a real one.
type server struct {
	*servertest.Server
	t *testing.T
}

// serve starts a server with a configuration, and waits until it is ready.
func serve(t *testing.T, providers, pools string) *server {
	t.Helper()
	return &server{servertest.Start(t, absolute(t, "../../bin/muster"), fmt.Sprintf("providers:\n%s\npools:\n%s\n", providers, pools)), t}
}

// allocs are those of a job.
func (s *server) allocs(job string) []api.Alloc {
	s.t.Helper()
	var all []api.Alloc
	for a, err := range s.Client.AllJobAllocs(s.t.Context(), muster.JobKey{Namespace: muster.DefaultNamespace, Name: job}, client.AllocQuery{}) {
		if err != nil {
			s.t.Fatal(err)
		}
		all = append(all, a)
	}
	return all
}

// running are the allocations of a job that run, by the index of their member.
func (s *server) running(job string) map[int]api.Alloc {
	out := map[int]api.Alloc{}
	for _, a := range s.allocs(job) {
		if a.Status == string(muster.AllocRunning) {
			out[a.Index] = a
		}
	}
	return out
}

func (s *server) node(id string) *api.Node {
	s.t.Helper()
	n, err := s.Client.Node(s.t.Context(), muster.NodeID(id))
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

// newKey makes a key: the path of its private half, and its public one.
func newKey(t *testing.T) (file, public string) {
	t.Helper()
	private, public, err := remote.NewKey("e2e")
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte(private.Reveal()), 0o600); err != nil {
		t.Fatal(err)
	}
	return file, public
}

// output is what a member has printed.
func (s *server) output(job string) string {
	s.t.Helper()
	out, _ := s.Run("job", "logs", job)
	return out
}
