package endtoend

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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
	"github.com/musterhq/muster/internal/locate"
)

// patience bounds whatever is waited for.
const patience = 3 * time.Minute

// host is a directory with a server in it.
type host struct {
	tb   testing.TB
	dir  string // of all of it
	data string // the server's data directory
	log  *os.File
	cmd  *exec.Cmd
	done chan struct{}
	cl   *client.Client
}

func newHost(tb testing.TB) *host {
	tb.Helper()
	needPrograms(tb)
	// Short, because sockets are below it.
	dir, err := os.MkdirTemp("", "me-")
	if err != nil {
		tb.Fatal(err)
	}
	h := &host{tb: tb, dir: dir, data: filepath.Join(dir, "d")}
	if h.log, err = os.Create(filepath.Join(dir, "log")); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(h.clean)
	return h
}

// dev starts `muster dev`, as it comes, and returns when it says that it is ready.
func (h *host) dev() time.Duration {
	h.tb.Helper()
	return h.start("dev", "--listen", "127.0.0.1:0", "--data-dir", h.data)
}

// serve starts `muster server` with a configuration.
func (h *host) serve(c api.ServerConfig) {
	h.tb.Helper()
	c.DataDir, c.Listen, c.Log.Level = h.data, "127.0.0.1:0", "warn"
	b, err := json.Marshal(c) // JSON is YAML
	if err != nil {
		h.tb.Fatal(err)
	}
	file := filepath.Join(h.dir, "muster.yaml")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		h.tb.Fatal(err)
	}
	h.start("server", "-c", file)
}

// start runs a server and tells how long it took until it was ready.
func (h *host) start(args ...string) time.Duration {
	h.tb.Helper()
	_ = os.Remove(filepath.Join(h.data, "server.json")) // of the server before
	h.cmd = exec.Command(programs.muster, append(args, "--node-binary", programs.node)...)
	h.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + h.dir, "XDG_CONFIG_HOME=" + h.dir, "TMPDIR=" + h.dir}
	for _, kv := range os.Environ() {
		if strings.HasPrefix(kv, "GODEBUG=") || strings.HasPrefix(kv, "GOGC=") || strings.HasPrefix(kv, "GOMAXPROCS=") {
			h.cmd.Env = append(h.cmd.Env, kv)
		}
	}
	h.cmd.Stdout = h.log
	stderr, err := h.cmd.StderrPipe()
	if err != nil {
		h.tb.Fatal(err)
	}
	began := time.Now()
	if err := h.cmd.Start(); err != nil {
		h.tb.Fatal(err)
	}
	said := make(chan time.Duration, 1)
	h.done = make(chan struct{})
	go func() {
		defer close(h.done)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			if strings.Contains(lines.Text(), "ready at") {
				said <- time.Since(began)
			}
			_, _ = fmt.Fprintln(h.log, lines.Text())
		}
		_ = h.cmd.Wait()
	}()
	var took time.Duration
	if args[0] == "dev" {
		select {
		case took = <-said:
		case <-h.done:
			h.tb.Fatalf("the server ended: %v\n%s", h.cmd.ProcessState, h.logged())
		case <-time.After(patience):
			h.tb.Fatalf("the server is not ready\n%s", h.logged())
		}
	}
	h.connect()
	return took
}

// connect waits until the server takes requests.
func (h *host) connect() {
	h.tb.Helper()
	deadline := time.Now().Add(patience)
	for {
		p, err := locate.Find(locate.Given{DataDir: h.data})
		if err == nil {
			if h.cl, err = client.New(client.Config{Address: p.Address, Token: p.Token, RetryFor: patience}); err == nil {
				err = h.cl.Ready(h.tb.Context())
			}
		}
		if err == nil {
			return
		}
		select {
		case <-h.done:
			h.tb.Fatalf("the server ended: %v\n%s", h.cmd.ProcessState, h.logged())
		case <-time.After(time.Millisecond):
		}
		if time.Now().After(deadline) {
			h.tb.Fatalf("the server is not ready: %v\n%s", err, h.logged())
		}
	}
}

func (h *host) logged() string {
	b, _ := os.ReadFile(h.log.Name())
	return string(b[max(0, len(b)-8192):])
}

// stop asks the server to end; instances and sandboxes stay.
func (h *host) stop() {
	h.tb.Helper()
	if err := h.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		h.tb.Fatal(err)
	}
	select {
	case <-h.done:
	case <-time.After(patience):
		h.tb.Fatal("the server does not end")
	}
}

// clean ends the server and every instance, and deletes everything. Safe to call twice.
func (h *host) clean() {
	if h.dir == "" {
		return
	}
	if h.cmd != nil && h.cmd.Process != nil {
		_ = h.cmd.Process.Kill()
		<-h.done
	}
	dirs, _ := filepath.Glob(filepath.Join(h.data, "*", "i-*"))
	for _, dir := range dirs {
		if err := destroyInstance(dir); err != nil {
			h.tb.Errorf("clean: %v", err)
		}
	}
	if h.tb.Failed() {
		h.tb.Logf("server:\n%s", h.logged())
	}
	_ = h.log.Close()
	if err := journal.RemoveTree(h.dir); err != nil {
		h.tb.Errorf("clean: %v", err)
	}
	h.dir = ""
}

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
	if os.Geteuid() != 0 {
		return nil
	}
	if err := cgroup.RemoveParent("muster/" + filepath.Base(dir)); err != nil {
		return err
	}
	networks := filepath.Join(dir, journal.NetworksName)
	if _, err := os.Lstat(networks); err != nil {
		return nil // it never made one
	}
	return network.RemoveAll(network.Name(dir), networks)
}

// fixed is a configuration of one pool with nodes of one size, all of them kept.
func fixed(nodes int, cpu float64) api.ServerConfig {
	return api.ServerConfig{
		Providers: []api.ProviderSpec{{Name: "here", Type: api.ProviderLocal, Offerings: []api.OfferingSpec{
			{Name: "node", CPU: cpu, Memory: 64 << 30, Disk: 1 << 30},
		}}},
		Pools: []api.PoolSpec{{Name: "main", Provider: "here", Max: nodes, Min: nodes, IdleTimeout: api.Duration(time.Hour)}},
	}
}

// small is a job whose members fit many to a node.
func small(count int, command ...string) api.JobSpec {
	return api.JobSpec{Count: count, Template: api.Template{Command: command, Resources: api.ResourcesSpec{CPU: 0.05, Memory: 16 << 20}}}
}

func (h *host) submit(spec api.JobSpec) *api.JobSubmitted {
	h.tb.Helper()
	done, err := h.cl.Submit(h.tb.Context(), api.JobSubmission{Spec: spec}, client.NewKey())
	if err != nil {
		h.tb.Fatal(err)
	}
	return done
}

// finish waits until no job lives any more.
func (h *host) finish() {
	h.tb.Helper()
	began := time.Now()
	for {
		l, err := h.cl.Jobs(h.tb.Context(), client.JobQuery{Stage: muster.JobLive, Limit: 1})
		if err != nil {
			h.tb.Fatal(err)
		}
		if len(l.Jobs) == 0 {
			return
		}
		waited := time.Since(began)
		if waited > patience {
			h.tb.Fatalf("job %s does not end: %+v", l.Jobs[0].Name, l.Jobs[0].Counts)
		}
		// Asking costs the server something too.
		<-time.After(min(max(waited/200, 2*time.Millisecond), 50*time.Millisecond))
	}
}

// run runs a job to its end, in which all have succeeded.
func (h *host) run(spec api.JobSpec) *api.Job {
	h.tb.Helper()
	done := h.submit(spec)
	h.finish()
	return h.succeeded(done)
}

func (h *host) succeeded(done *api.JobSubmitted) *api.Job {
	h.tb.Helper()
	j, err := h.cl.Job(h.tb.Context(), muster.JobKey{Namespace: muster.Namespace(done.Namespace), Name: done.Name})
	if err != nil {
		h.tb.Fatal(err)
	}
	if j.Counts.Succeeded != j.Count {
		h.tb.Fatalf("job %s: %s, %+v", j.Name, j.Reason, j.Counts)
	}
	return j
}

// told collects the events of allocations, of those to come.
type told struct {
	events chan api.Event
	err    error
}

// watch begins to read events and returns when the stream is open.
func (h *host) watch() *told {
	h.tb.Helper()
	t := &told{events: make(chan api.Event, 1<<16)}
	ctx, cancel := context.WithCancel(h.tb.Context())
	h.tb.Cleanup(cancel)
	info, err := h.cl.Server(ctx)
	if err != nil {
		h.tb.Fatal(err)
	}
	go func() {
		defer close(t.events)
		for ev, err := range h.cl.Events(ctx, client.EventQuery{After: fmt.Sprint(info.Index)}) {
			if err != nil {
				if !errors.Is(err, context.Canceled) {
					t.err = err
				}
				return
			}
			if ev.AllocNow != nil {
				t.events <- ev
			}
		}
	}()
	return t
}

// next is the next event of a job, of one type if that is given.
func (h *host) next(t *told, kind, job string) api.Event {
	h.tb.Helper()
	late := time.After(patience)
	for {
		select {
		case ev, ok := <-t.events:
			if !ok {
				h.tb.Fatalf("events ended: %v", t.err)
			}
			if (kind == "" || ev.Type == kind) && ev.Job == job {
				return ev
			}
		case <-late:
			h.tb.Fatalf("no event %s of job %q", kind, job)
		}
	}
}
