package server

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/internal/config"
	"github.com/musterhq/muster/internal/locate"
	"github.com/musterhq/muster/internal/raftlog"
	"github.com/musterhq/muster/internal/state"
)

// serve runs a server of no nodes in this process and answers with a client of
// it, and with what ends it.
func serve(t *testing.T, dir string) (*client.Client, func() error) {
	t.Helper()
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	node := filepath.Join(t.TempDir(), "muster-node")
	if err := os.WriteFile(node, []byte("#!/bin/sh\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	cfg := config.Dev(2, 4*muster.GiB)
	cfg.DataDir, cfg.Listen, cfg.LowWater = dir, "127.0.0.1:0", 1
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan string, 1), make(chan error, 1)
	go func() {
		done <- Run(ctx, cfg, Options{NodeBinary: node, Version: "test", Logger: slog.New(slog.DiscardHandler), Ready: func(a string) { ready <- a }})
	}()
	end := func() error { cancel(); return <-done }
	select {
	case address := <-ready:
		token, err := locate.ReadToken(dir)
		if err != nil {
			t.Fatal(err)
		}
		c, err := client.New(client.Config{Address: address, Token: token})
		if err != nil {
			t.Fatal(err)
		}
		return c, end
	case err := <-done:
		t.Fatalf("ended at once: %v", err)
	case <-time.After(30 * time.Second):
		t.Fatal("not ready")
	}
	return nil, nil
}

func TestStartsStopsAndGoesOn(t *testing.T) {
	dir := t.TempDir()
	c, end := serve(t, dir)
	before, err := c.Server(t.Context())
	if err != nil || !before.Leader || before.Epoch != 1 {
		t.Fatalf("%+v %v", before, err)
	}
	// It fits nowhere, and is failed at once with a sentence.
	sub, err := c.Submit(t.Context(), api.JobSubmission{Spec: api.JobSpec{Name: "big", Template: api.Template{Command: []string{"true"}, Resources: api.ResourcesSpec{CPU: 64}}}}, "k1")
	if err != nil {
		t.Fatal(err)
	}
	key := muster.JobKey{Namespace: muster.DefaultNamespace, Name: "big"}
	for e, err := range c.Events(t.Context(), client.EventQuery{After: "0", Namespace: key.Namespace, Job: key.Name}) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Type == "job.ended" {
			break
		}
	}
	job, err := c.Job(t.Context(), key)
	if err != nil || job.Outcome != string(muster.JobFailed) || !strings.Contains(job.Reason, "64 cpu") || !strings.Contains(job.Reason, "large") {
		t.Fatalf("%+v %v", job, err)
	}
	metrics, err := c.Metrics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(metrics)
	_ = metrics.Close()
	if err != nil || !strings.Contains(string(text), "muster_evals_ready 0") || !strings.Contains(string(text), "muster_placements_total 0") {
		t.Errorf("metrics of the loops are not there: %v", err)
	}
	if !regexp.MustCompile(`muster_commit_seconds_count\{of="others"\} [1-9]`).Match(text) || !strings.Contains(string(text), `muster_commit_seconds_count{of="plans"} 0`) {
		t.Error("commits were not measured")
	}
	if err := end(); err != nil {
		t.Fatalf("ended with %v", err)
	}
	// The same directory, and the same submission repeated: nothing new.
	c, end = serve(t, dir)
	again, err := c.Submit(t.Context(), api.JobSubmission{Spec: api.JobSpec{Name: "big", Template: api.Template{Command: []string{"true"}, Resources: api.ResourcesSpec{CPU: 64}}}}, "k1")
	if err != nil || again.UID != sub.UID || again.Version != sub.Version {
		t.Errorf("%+v, first %+v: %v", again, sub, err)
	}
	if after, err := c.Server(t.Context()); err != nil || after.ClusterID != before.ClusterID || after.Index <= before.Index {
		t.Errorf("%+v, before %+v: %v", after, before, err)
	}
	if err := end(); err != nil {
		t.Fatal(err)
	}
}

func TestRestoredServerBeginsAnEpoch(t *testing.T) {
	c, end := serve(t, t.TempDir())
	was, err := c.Server(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r, err := c.Backup(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "backup")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(f, r); err != nil {
		t.Fatal(err)
	}
	_, _ = r.Close(), f.Close()
	if err := end(); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "restored")
	if _, err := Restore(t.Context(), file, dir); err != nil {
		t.Fatal(err)
	}
	began := uint64(0)
	for range 2 { // the epoch begins once, not with each start
		c, end = serve(t, dir)
		is, err := c.Server(t.Context())
		if err != nil || is.ClusterID != was.ClusterID || is.Epoch <= was.Epoch {
			t.Fatalf("%+v, was %+v: %v", is, was, err)
		}
		if began != 0 && is.Epoch != began {
			t.Errorf("epoch %d at the first start, %d at the second", began, is.Epoch)
		}
		began = is.Epoch
		if err := end(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFaultsOfTheLogHaveKinds(t *testing.T) {
	for _, c := range []struct {
		err  error
		kind muster.FaultKind
	}{
		{raftlog.ErrDiskLow, muster.FaultDiskLow}, {raftlog.ErrTooLarge, muster.FaultInvalid}, {raftlog.ErrNotLeader, muster.FaultUnavailable},
		{raftlog.ErrStopping, muster.FaultUnavailable}, {raftlog.ErrAmbiguous, muster.FaultAmbiguous},
		{&raftlog.StorageError{Dir: "d", Err: os.ErrClosed}, muster.FaultUnavailable},
		{muster.Faultf(muster.FaultConflict, "refused by apply"), muster.FaultConflict}, {errors.New("anything else"), muster.FaultInternal},
	} {
		if got := muster.KindOf(fault(c.err)); got != c.kind {
			t.Errorf("%v: %s, want %s", c.err, got, c.kind)
		}
	}
	if err := fault(context.Canceled); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestUnreadableFactIsFatal(t *testing.T) {
	s, err := state.New(16)
	if err != nil {
		t.Fatal(err)
	}
	got := machine{s}.Apply(1, 1, 1, [][]byte{{0x83, 0x18, 0x63, 0x01, 0xa0}})
	var fatal *raftlog.Fatal
	if err, is := got[0].(error); !is || !errors.As(err, &fatal) {
		t.Errorf("%v", got[0])
	}
}
