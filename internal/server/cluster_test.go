package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/internal/cluster"
	"github.com/musterhq/muster/internal/config"
	"github.com/musterhq/muster/internal/locate"
	"github.com/musterhq/muster/internal/servertest"
	"github.com/musterhq/muster/internal/testwait"
)

// one is a server of a cluster in this process.
type one struct {
	name, dir, peers string
	api              string
	*client.Client
	stop func() error
	done chan error
}

// member makes a server that is not started yet. All have their blobs in one directory, and a provider that
// has no machines.
func member(t *testing.T, name string) *one {
	t.Helper()
	return &one{name: name, dir: filepath.Join(t.TempDir(), name), peers: servertest.FreeAddress(t), api: servertest.FreeAddress(t)}
}

func (o *one) config(shared string) api.ServerConfig {
	cfg := config.Dev(2, 4*muster.GiB)
	cfg.DataDir, cfg.Listen, cfg.LowWater = o.dir, o.api, 1
	cfg.Blob.URL = "file://" + shared
	cfg.Cluster = &api.ClusterSpec{Name: o.name, Address: o.peers, API: o.api}
	cfg.Providers = []api.ProviderSpec{{Name: "none", Type: api.ProviderExec, Command: []string{filepath.Join(shared, "none")}, SSH: &api.SSHSpec{KeyFile: filepath.Join(shared, "key")}}}
	cfg.Pools = []api.PoolSpec{{Name: "main", Provider: "none", Max: 1}}
	return cfg
}

// start runs the server until stop is called; it waits until the server is ready.
func (o *one) start(t *testing.T, shared string, start cluster.Start) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready := make(chan string, 1)
	o.done = make(chan error, 1)
	logger := slog.New(slog.NewTextHandler(testLog{t, o.name}, nil))
	go func() {
		o.done <- Run(ctx, o.config(shared), Options{
			NodeBinary: filepath.Join(shared, "none"), Version: "test", Logger: logger, Start: start, Ready: func(a string) { ready <- a },
		})
	}()
	stopped := false
	o.stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		return <-o.done
	}
	t.Cleanup(func() { _ = o.stop() })
	select {
	case <-ready:
	case err := <-o.done:
		o.done <- err
		t.Fatalf("server %s ended at once: %v", o.name, err)
	case <-time.After(60 * time.Second):
		t.Fatalf("server %s is not ready", o.name)
	}
	token, err := locate.ReadToken(o.dir)
	if err != nil {
		t.Fatal(err)
	}
	if o.Client, err = client.New(client.Config{Address: o.api, Token: token, RetryFor: 20 * time.Second}); err != nil {
		t.Fatal(err)
	}
}

// testLog writes log lines with the name of their server.
type testLog struct {
	t    *testing.T
	name string
}

func (l testLog) Write(p []byte) (int, error) {
	fmt.Fprintf(os.Stderr, "%s %s", l.name, p)
	return len(p), nil
}

// prepare puts into a directory what all servers of a test share: a program that says that it has no machines,
// and a key.
func prepare(t *testing.T, shared string) {
	t.Helper()
	key, err := newLoginKey()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(shared, "key"), key, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(shared, "none"), []byte("#!/bin/sh\necho '{}'\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

// three starts a cluster of three servers. The first leads.
func three(t *testing.T) (all []*one, shared string) {
	t.Helper()
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	shared = t.TempDir()
	prepare(t, shared)
	a := member(t, "a")
	a.start(t, shared, cluster.Start{Bootstrap: true})
	all = append(all, a)
	for _, name := range []string{"b", "c"} {
		token, err := a.JoinToken(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		o := member(t, name)
		o.start(t, shared, cluster.Start{Join: token.Address, Token: muster.NewSecret(token.Token)})
		all = append(all, o)
	}
	until(t, "all vote", func() bool {
		l, err := a.Servers(t.Context(), false)
		if err != nil {
			return false
		}
		voters := 0
		for _, s := range l.Servers {
			if s.Role == api.RoleVoter || s.Role == api.RoleLeader {
				voters++
			}
		}
		return voters == 3 && l.Reads == l.Format
	})
	return all, shared
}

func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	testwait.Until(t, what, holds)
}

func submitJob(t *testing.T, c *client.Client, name string) {
	t.Helper()
	spec := api.JobSpec{Name: name, Template: api.Template{Command: []string{"true"}}}
	if _, err := c.Submit(t.Context(), api.JobSubmission{Spec: spec}, "key-"+name); err != nil {
		t.Fatalf("submit %s: %v", name, err)
	}
}

func key(name string) muster.JobKey {
	return muster.JobKey{Namespace: muster.DefaultNamespace, Name: name}
}

func TestAnyServerAnswers(t *testing.T) {
	all, _ := three(t)
	a, b, c := all[0], all[1], all[2]
	// A write by one is seen by each of the others at once.
	submitJob(t, b.Client, "by-b")
	submitJob(t, c.Client, "by-c")
	for _, o := range all {
		for _, name := range []string{"by-b", "by-c"} {
			if _, err := o.Job(t.Context(), key(name)); err != nil {
				t.Errorf("server %s: job %s: %v", o.name, name, err)
			}
		}
	}
	// Each says who it is itself.
	for i, o := range all {
		if info, err := o.Server(t.Context()); err != nil || info.Leader != (i == 0) {
			t.Errorf("server %s: %+v, %v", o.name, info, err)
		}
	}
	// A stale read is answered by the follower itself, from an index on.
	info, err := a.Server(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("http://%s/v1/jobs/default/by-c?stale=true&min_index=%d", b.api, info.Index), nil)
	if err != nil {
		t.Fatal(err)
	}
	token, err := locate.ReadToken(b.dir)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token.Reveal())
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if res.StatusCode != http.StatusOK || res.Header.Get("Muster-Index") == "" || res.Header.Get("Muster-Age-Ms") == "" {
		t.Errorf("%d %v %s", res.StatusCode, res.Header, body)
	}
	// Without a token nothing is passed on.
	res, err = http.Get("http://" + b.api + "/v1/jobs")
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusUnauthorized {
		t.Errorf("without a token: %d", res.StatusCode)
	}
}

func TestLeaderChange(t *testing.T) {
	all, shared := three(t)
	a, b, c := all[0], all[1], all[2]
	submitJob(t, a.Client, "before")
	if err := c.TransferLeadership(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	until(t, "b leads", func() bool { i, err := b.Server(t.Context()); return err == nil && i.Leader })
	for _, o := range all {
		if _, err := o.Job(t.Context(), key("before")); err != nil {
			t.Errorf("server %s: %v", o.name, err)
		}
	}
	// The leader stops: it hands over, and the others go on.
	if err := b.stop(); err != nil {
		t.Fatal(err)
	}
	submitJob(t, a.Client, "without-b")
	if _, err := c.Job(t.Context(), key("without-b")); err != nil {
		t.Error(err)
	}
	// One that comes back needs no option, and has what it missed.
	b.start(t, shared, cluster.Start{})
	if _, err := b.Job(t.Context(), key("without-b")); err != nil {
		t.Error(err)
	}
}

func TestRemoveAServer(t *testing.T) {
	all, shared := three(t)
	a, b, c := all[0], all[1], all[2]
	if err := a.RemoveServer(t.Context(), "nobody"); !client.IsNotFound(err) {
		t.Errorf("a server that there is not: %v", err)
	}
	if err := a.RemoveServer(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	if err := <-c.done; !errors.Is(err, cluster.ErrRemoved) {
		t.Errorf("the removed server ended with %v", err)
	}
	c.done <- nil
	// With one of the two off, nothing can be decided; it comes back.
	if err := b.stop(); err != nil {
		t.Fatal(err)
	}
	// The removed one is refused when it is started again, in a sentence.
	b.start(t, shared, cluster.Start{})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
	defer cancel()
	err := Run(ctx, c.config(shared), Options{NodeBinary: filepath.Join(shared, "none"), Logger: slog.New(slog.DiscardHandler)})
	if !errors.Is(err, cluster.ErrRemoved) {
		t.Errorf("started again after it was removed: %v", err)
	}
	l, err := a.Servers(t.Context(), false)
	if err != nil || len(l.Servers) != 2 {
		t.Errorf("%+v, %v", l, err)
	}
}

func TestClusterRefusals(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	shared := t.TempDir()
	prepare(t, shared)
	a := member(t, "a")
	run := func(o *one, start cluster.Start) error {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		return Run(ctx, o.config(shared), Options{NodeBinary: filepath.Join(shared, "none"), Logger: slog.New(slog.DiscardHandler), Start: start})
	}
	if err := run(a, cluster.Start{}); err == nil || !strings.Contains(err.Error(), "--bootstrap") {
		t.Errorf("neither founded nor joined: %v", err)
	}
	a.start(t, shared, cluster.Start{Bootstrap: true})
	token, err := a.JoinToken(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	same := member(t, "a")
	if err := run(same, cluster.Start{Join: a.peers, Token: muster.NewSecret(token.Token)}); err == nil || !strings.Contains(err.Error(), "another server of the name a") {
		t.Errorf("a name that is taken: %v", err)
	}
	b := member(t, "b")
	if err := run(b, cluster.Start{Join: a.peers, Token: muster.NewSecret(token.Token[:20])}); err == nil || !strings.Contains(err.Error(), "token") {
		t.Errorf("half a token: %v", err)
	}
	if err := run(b, cluster.Start{Join: a.api, Token: muster.NewSecret(token.Token)}); err == nil {
		t.Error("joined by the port of the API")
	}
	// The log of a member is lost: it must not begin another one.
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(a.dir, "log")); err != nil {
		t.Fatal(err)
	}
	if err := run(a, cluster.Start{}); err == nil || !strings.Contains(err.Error(), "log of this server is missing") {
		t.Errorf("a lost log: %v", err)
	}
}
