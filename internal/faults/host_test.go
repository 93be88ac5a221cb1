package faults

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/internal/agent/cgroup"
	"github.com/musterhq/muster/internal/agent/initbox"
	"github.com/musterhq/muster/internal/agent/journal"
	"github.com/musterhq/muster/internal/agent/network"
	"github.com/musterhq/muster/internal/agent/userns"
	"github.com/musterhq/muster/internal/locate"
	"github.com/musterhq/muster/internal/testwait"
)

// patience is how long something may take that has no deadline of its own: the
// machine may be busy with other tests.
const patience = time.Minute

// providerName is the configured provider, and the directory of its instances.
const providerName = "here"

// host is one directory with a server in it that is started and killed.
type host struct {
	t      *testing.T
	dir    string // of everything of this test
	data   string // the server's data directory
	config api.ServerConfig
	node   string // the muster-node program that the server is told
	// search is the PATH of all programs of this host; empty: that of the tests.
	search string
	// user runs the server, if it is not 0.
	user int
	srv  *program
	logs *os.File
	// mounted: the data directory is a file system of its own.
	mounted bool
}

// newHost makes a host whose server has not been started.
func newHost(t *testing.T, change ...func(*api.ServerConfig)) *host {
	t.Helper()
	// Not t.TempDir: sockets are below it, and their paths are bounded.
	dir, err := os.MkdirTemp("", "mf-")
	if err != nil {
		t.Fatal(err)
	}
	h := &host{t: t, dir: dir, data: filepath.Join(dir, "d"), node: programs.node}
	t.Cleanup(func() { h.removeDir() })
	h.logs, err = os.OpenFile(h.path("server.log"), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	h.config = api.ServerConfig{
		DataDir:  h.data,
		Listen:   "127.0.0.1:0",
		Log:      api.LogConfig{Level: "info"},
		LowWater: 1 << 20,
		Providers: []api.ProviderSpec{{Name: providerName, Type: api.ProviderLocal, Offerings: []api.OfferingSpec{
			{Name: "small", CPU: 1, Memory: 1 << 30, Disk: 1 << 30, Price: 0.01},
			{Name: "large", CPU: 4, Memory: 4 << 30, Disk: 4 << 30, Price: 0.03},
		}}},
		Pools: []api.PoolSpec{{Name: "main", Provider: providerName, Max: 6, IdleTimeout: api.Duration(time.Second)}},
	}
	for _, fn := range change {
		fn(&h.config)
	}
	t.Cleanup(h.clean)
	return h
}

func (h *host) path(name string) string      { return filepath.Join(h.dir, name) }
func (h *host) instances() string            { return filepath.Join(h.data, providerName) }
func (h *host) file(name string) string      { return readFile(h.t, h.path(name)) }
func (h *host) write(name, text string)      { writeFile(h.t, h.path(name), text) }
func (h *host) configFile() string           { return h.path("muster.json") }
func (h *host) log() string                  { return h.file("server.log") }
func (h *host) logged(text string) bool      { return strings.Contains(h.log(), text) }
func (h *host) has(name string) bool         { return exists(h.path(name)) }
func readFile(t *testing.T, p string) string { t.Helper(); return string(must(os.ReadFile(p))(t)) }

func writeFile(t *testing.T, p, text string) {
	t.Helper()
	if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// must unwraps what must not fail.
func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// env is that of this host's programs.
func (h *host) env(more ...string) []string {
	env := baseEnv(h.dir)
	if h.search != "" {
		env[0] = "PATH=" + h.search
	}
	return append(env, more...)
}

// baseEnv is a user of their own, who has nothing but a path.
func baseEnv(dir string) []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "XDG_CONFIG_HOME=" + filepath.Join(dir, "config"), "TMPDIR=" + dir, "TZ=UTC"}
}

// launch starts the server and does not wait for it.
func (h *host) launch(args ...string) *program {
	h.t.Helper()
	if len(args) == 0 {
		h.write("muster.json", string(must(json.Marshal(h.config))(h.t))) // JSON is YAML
		args = []string{"server", "-c", h.configFile()}
	}
	p := newProgram(h.t, append(args, "--node-binary", h.node)...)
	p.cmd.Env = h.env()
	p.cmd.Stdout, p.cmd.Stderr = h.logs, h.logs
	h.asUser(p.cmd)
	p.start()
	return p
}

// start starts the server and waits until it is ready.
func (h *host) start(args ...string) {
	h.t.Helper()
	before := h.announced()
	h.srv = h.launch(args...)
	h.ready(before)
}

// announced is when a server of this host last told where it is.
func (h *host) announced() time.Time {
	info, err := os.Stat(filepath.Join(h.data, "server.json"))
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// ready waits until the server that was launched takes writes; before is when one was announced last.
func (h *host) ready(before time.Time) {
	h.t.Helper()
	h.eventually("the server is ready", func() bool {
		if h.srv.ended() {
			h.t.Fatalf("the server ended: %v\n%s", h.srv.cmd.ProcessState, h.log())
		}
		s, err := locate.ReadServer(h.data)
		if err != nil || h.announced().Equal(before) {
			return false
		}
		cl, err := client.New(client.Config{Address: s.Address, RetryFor: -1})
		return err == nil && cl.Ready(h.t.Context()) == nil
	})
}

// kill is kill -9 of the server, and of nothing else.
func (h *host) kill() {
	h.t.Helper()
	h.srv.kill()
}

// stop is SIGTERM, and returns the exit code.
func (h *host) stop() int {
	h.t.Helper()
	h.srv.signal(syscall.SIGTERM)
	return h.srv.wait()
}

// client speaks to the server wherever it is, and waits for one that is away.
func (h *host) client() *client.Client {
	h.t.Helper()
	find := func() (string, muster.Secret, error) {
		p, err := locate.Find(locate.Given{DataDir: h.data})
		return p.Address, p.Token, err
	}
	address, token, err := find()
	if err != nil {
		h.t.Fatal(err)
	}
	return must(client.New(client.Config{Address: address, Token: token, Find: find, RetryFor: patience}))(h.t)
}

// muster starts the CLI with this host's server.
func (h *host) muster(args ...string) *program {
	h.t.Helper()
	p := newProgram(h.t, append([]string{"--data-dir", h.data}, args...)...)
	p.cmd.Env = h.env()
	p.start()
	return p
}

// resubmit is the program that submits a job, started again if it ended because no server answered before the job was there. Its
// first request waits 2 s for a server, and on a busy machine a server that was killed takes longer to be ready.
func (h *host) resubmit(run *program, job string) *program {
	h.t.Helper()
	if !run.ended() || run.wait() != 3 || !strings.Contains(run.stderr.String(), "no server answers") {
		return run
	}
	if _, err := h.client().Job(h.t.Context(), key(job)); !client.IsNotFound(err) {
		return run
	}
	h.t.Logf("%s: the server was away for too long", run)
	again := newProgram(h.t, run.cmd.Args[1:]...)
	again.cmd.Env = h.env()
	again.start()
	return again
}

// cli runs the CLI to its end.
func (h *host) cli(args ...string) *program {
	h.t.Helper()
	p := h.muster(args...)
	p.wait()
	return p
}

// clean ends everything that this host has started, by pid, and says what was left that should not be.
func (h *host) clean() {
	if h.srv != nil {
		h.srv.kill()
	}
	if h.t.Failed() {
		logs, _ := filepath.Glob(h.path("*.log"))
		agents, _ := filepath.Glob(filepath.Join(h.instances(), "i-*", "agent.log"))
		for _, name := range append(logs, agents...) {
			if b, err := os.ReadFile(name); err == nil {
				h.t.Logf("%s:\n%s", name, tail(string(b), 100))
			}
		}
	}
	for _, dir := range h.instanceDirs() {
		if err := destroyInstance(dir); err != nil {
			h.t.Errorf("clean: %v", err)
		}
	}
	// What was killed needs a moment to be gone.
	for deadline := time.Now().Add(5 * time.Second); len(touching(h.dir)) > 0 && time.Now().Before(deadline); {
		pause(5 * time.Millisecond)
	}
	for _, p := range touching(h.dir) {
		h.t.Errorf("left: process %d: %s", p.pid, p.command())
		p.kill()
	}
	_ = h.logs.Close()
}

func (h *host) removeDir() {
	if h.mounted {
		if err := syscall.Unmount(h.data, 0); err != nil {
			h.t.Errorf("clean: unmount %s: %v", h.data, err)
		}
	}
	if err := journal.RemoveTree(h.dir); err != nil {
		h.t.Errorf("clean: %v", err)
	}
}

// instanceDirs are the directories of instances, of whichever owner.
func (h *host) instanceDirs() []string {
	dirs, _ := filepath.Glob(filepath.Join(h.dir, "*", "*", "i-*"))
	return dirs
}

// destroyInstance ends all of an instance without asking anybody.
func destroyInstance(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if r, err := journal.ReadRecord(dir); err == nil {
		if err := r.Kill(); err != nil {
			return err
		}
	}
	sandboxes, err := journal.SandboxDirs(dir)
	if err != nil {
		return err
	}
	for _, s := range sandboxes {
		if err := initbox.Destroy(ctx, s); err != nil {
			return err
		}
	}
	if err := userns.End(dir); err != nil || os.Geteuid() != 0 {
		return err
	}
	err = cgroup.RemoveParent("muster/" + filepath.Base(dir))
	if networks := filepath.Join(dir, journal.NetworksName); err == nil && exists(networks) {
		err = network.RemoveAll(network.Name(dir), networks)
	}
	return err
}

func exists(path string) bool { _, err := os.Lstat(path); return err == nil }

// eventually waits for a condition.
func (h *host) eventually(what string, ok func() bool) {
	h.t.Helper()
	testwait.Within(h.t, patience, what, ok)
}

// pause is between two looks at a condition, or the length of a fault.
func pause(d time.Duration) { <-time.After(d) }

func tail(s string, lines int) string {
	all := strings.Split(strings.TrimRight(s, "\n"), "\n")
	if len(all) > lines {
		all = append([]string{"…"}, all[len(all)-lines:]...)
	}
	return strings.Join(all, "\n")
}

// program is a started muster.
type program struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdout *buffer
	stderr *buffer
	done   chan struct{}
}

func newProgram(t *testing.T, args ...string) *program {
	p := &program{t: t, cmd: exec.Command(programs.muster, args...), stdout: &buffer{}, stderr: &buffer{}, done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p.stdout, p.stderr
	return p
}

func (p *program) start() {
	p.t.Helper()
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
	p.t.Cleanup(p.kill)
}

func (p *program) pid() int { return p.cmd.Process.Pid }

func (p *program) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// wait is the exit code of a program that ends.
func (p *program) wait() int {
	p.t.Helper()
	return p.waitFor(2 * patience)
}

func (p *program) waitFor(limit time.Duration) int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(limit):
		p.t.Fatalf("%s has not ended within %s\nstdout: %s\nstderr: %s", p, limit, tail(p.stdout.String(), 20), tail(p.stderr.String(), 20))
	}
	return p.cmd.ProcessState.ExitCode()
}

func (p *program) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatalf("%s: %v", p, err)
	}
}

func (p *program) kill() {
	if p.cmd.Process == nil || p.ended() {
		return
	}
	_ = p.cmd.Process.Kill()
	<-p.done
}

func (p *program) String() string { return "muster " + strings.Join(p.cmd.Args[1:], " ") }

// says fails the test unless the program ended with this exit code and stderr has all of these texts.
func (p *program) says(code int, texts ...string) {
	p.t.Helper()
	got := p.wait()
	missing := slices.ContainsFunc(texts, func(s string) bool { return !strings.Contains(p.stderr.String(), s) })
	if got != code || missing {
		p.t.Errorf("%s\nexit code %d, want %d; on stderr wanted %q\nstderr: %s\nstdout: %s", p, got, code, texts, tail(p.stderr.String(), 40), tail(p.stdout.String(), 20))
	}
}

// buffer is what a program prints, readable while it does.
type buffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// lines of what a program has printed, sorted.
func (b *buffer) lines() []string {
	all := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	slices.Sort(all)
	return all
}

// key is a job's in the default namespace.
func key(name string) muster.JobKey {
	return muster.JobKey{Namespace: muster.DefaultNamespace, Name: name}
}

// allocs are all attempts of a job, in the order of members and attempts.
func (h *host) allocs(job string) []api.Alloc {
	h.t.Helper()
	var all []api.Alloc
	for a, err := range h.client().AllJobAllocs(h.t.Context(), key(job), client.AllocQuery{}) {
		if err != nil {
			h.t.Fatal(err)
		}
		all = append(all, a)
	}
	slices.SortFunc(all, func(a, b api.Alloc) int { return (a.Index-b.Index)*1000 + a.Attempt - b.Attempt })
	return all
}

// nodes are all nodes that are remembered.
func (h *host) nodes() []api.Node {
	h.t.Helper()
	var all []api.Node
	for n, err := range h.client().AllNodes(h.t.Context(), client.NodeQuery{}) {
		if err != nil {
			h.t.Fatal(err)
		}
		all = append(all, n)
	}
	return all
}

// job is how a job stands.
func (h *host) job(name string) *api.Job {
	h.t.Helper()
	return must(h.client().Job(h.t.Context(), key(name)))(h.t)
}

// idle waits until the fleet has given back every instance by itself: no directory, no process but the server.
func (h *host) idle() {
	h.t.Helper()
	left := ""
	deadline := time.Now().Add(patience)
	for {
		left = ""
		for _, dir := range h.instanceDirs() {
			left += " " + dir
		}
		for _, p := range touching(h.dir) {
			if p.pid != h.srv.pid() {
				left += fmt.Sprintf(" %d(%s)", p.pid, p.command())
			}
		}
		if left == "" {
			return
		}
		if time.Now().After(deadline) {
			h.t.Fatalf("not given back:%s", left)
		}
		pause(20 * time.Millisecond)
	}
}

// stored waits until the output of all that a job's members printed is in the blob store.
func (h *host) stored(job string) {
	h.t.Helper()
	h.eventually("the output of "+job+" is stored", func() bool {
		return !slices.ContainsFunc(h.allocs(job), func(a api.Alloc) bool { return a.Output.State != "complete" })
	})
}

// running waits until a job has so many members that run.
func (h *host) running(job string, n int) {
	h.t.Helper()
	h.eventually(fmt.Sprintf("%d members of %s run", n, job), func() bool {
		j, err := h.client().Job(h.t.Context(), key(job))
		return err == nil && j.Counts.Running == n
	})
}

func readAll(t *testing.T, r io.Reader) string {
	t.Helper()
	return string(must(io.ReadAll(r))(t))
}
