package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fxamacker/cbor/v2"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/config"
	"github.com/musterhq/muster/internal/raftlog"
	"github.com/musterhq/muster/internal/state"
)

// entries collects the facts that a log holds.
type entries struct {
	machine
	mu    sync.Mutex
	facts []state.Fact
}

func (e *entries) Apply(index, term uint64, at int64, proposals [][]byte) []any {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, p := range proposals {
		if f, err := e.s.Decode(p); err == nil {
			e.facts = append(e.facts, f)
		}
	}
	return e.machine.Apply(index, term, at, proposals)
}

// withLog opens the log of a data directory without a server, and ends it.
func withLog(t *testing.T, dir string, do func(*raftlog.Log)) *entries {
	t.Helper()
	s, err := state.New(16)
	if err != nil {
		t.Fatal(err)
	}
	e := &entries{machine: machine{s}}
	withMachine(t, dir, e, do)
	return e
}

func withMachine(t *testing.T, dir string, m raftlog.Machine, do func(*raftlog.Log)) {
	t.Helper()
	l, err := raftlog.Open(raftlog.Config{Dir: filepath.Join(dir, "log"), Machine: m, LowWater: func(uint64) uint64 { return 0 }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done, led := make(chan error, 1), make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	leads := make(chan struct{})
	go func() {
		led <- l.Lead(ctx, func(ctx context.Context, term uint64) error {
			close(leads)
			<-ctx.Done()
			return nil
		})
	}()
	<-leads
	do(l)
	cancel()
	<-led
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestGateIsRaisedOnce(t *testing.T) {
	dir := t.TempDir()
	for range 2 {
		_, end := serve(t, dir)
		if err := end(); err != nil {
			t.Fatal(err)
		}
	}
	e := withLog(t, dir, func(*raftlog.Log) {})
	var raised []state.FormatRaised
	terms := 0
	for i, f := range e.facts {
		switch f := f.(type) {
		case *state.TermBegan:
			terms++
		case *state.FormatRaised:
			raised = append(raised, *f)
			if _, follows := e.facts[i-1].(*state.TermBegan); !follows {
				t.Errorf("%T was written before the gate was raised", e.facts[i-1])
			}
		}
	}
	if want := []state.FormatRaised{{Format: state.FormatNewest, By: "test"}}; terms != 2 || !slices.Equal(raised, want) {
		t.Errorf("%d terms, raised %+v; want %+v", terms, raised, want)
	}
}

// bareServer has what raiseFormat and a ledger need; what is proposed is applied at once.
func bareServer(t *testing.T, readable state.Format) (*Server, ledger) {
	t.Helper()
	st, err := state.New(16)
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{state: st, log: slog.New(slog.DiscardHandler), opts: Options{Version: "v2"}, readable: func() state.Format { return readable }}
	index := uint64(0)
	return s, ledger{st, func(_ context.Context, p []byte) (raftlog.Result, error) {
		index++
		v := st.Apply(index, 1, int64(index), [][]byte{p})[0]
		err, _ := v.(error)
		return raftlog.Result{Index: index, Value: v}, err
	}, newCommits()}
}

func TestOlderServerHoldsTheGate(t *testing.T) {
	s, l := bareServer(t, state.FormatFirst)
	if err := s.raiseFormat(t.Context(), l, false); err == nil || !strings.Contains(err.Error(), "reads only up to 1; upgrade it first") {
		t.Errorf("a leader whose loops need more than a server of its cluster reads: %v", err)
	}
	_, _, err := l.Propose(t.Context(), &state.NodeGone{ID: "n1", UnlessHeld: true})
	if !muster.IsKind(err, muster.FaultUnavailable) || !strings.Contains(err.Error(), "state.NodeGone.UnlessHeld needs log format 2") {
		t.Errorf("a fact above the gate: %v", err)
	}
	if i := s.state.Latest().Index(); i != 0 {
		t.Errorf("it was written: the log is at %d", i)
	}
	s.readable = func() state.Format { return state.FormatNewest }
	if err := s.raiseFormat(t.Context(), l, false); err != nil {
		t.Fatal(err)
	}
	// The node is not there: it is the state that refuses it now.
	if _, _, err := l.Propose(t.Context(), &state.NodeGone{ID: "n1", UnlessHeld: true}); !muster.IsKind(err, muster.FaultNotFound) {
		t.Errorf("once every server reads it: %v", err)
	}
}

// The format of a new data directory is no news: no older version has opened it.
func TestFormatOfNewDirectoryIsNotLogged(t *testing.T) {
	for fresh, want := range map[bool]int{true: 0, false: 1} {
		s, l := bareServer(t, state.FormatNewest)
		var log strings.Builder
		s.log = slog.New(slog.NewTextHandler(&log, nil))
		if err := s.raiseFormat(t.Context(), l, fresh); err != nil {
			t.Fatal(err)
		}
		meta := s.state.Latest().Meta()
		if n := strings.Count(log.String(), "log format raised"); n != want || meta.LogFormat() != state.FormatNewest {
			t.Errorf("new directory: %v: logged %d times, want %d; the format is %d", fresh, n, want, meta.LogFormat())
		}
	}
}

// newerFact is FormatRaised as the next version writes it.
func newerFact(t *testing.T) []byte {
	t.Helper()
	s, err := state.New(16)
	if err != nil {
		t.Fatal(err)
	}
	b, err := s.Encode(&state.FormatRaised{Format: state.FormatNewest + 1, By: "v9.1"})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// newerSays is what a server says of a log that a newer version wrote.
func newerSays() string {
	return fmt.Sprintf("it has format %d, and this version reads up to format %d; run muster v9.1 or a newer version",
		state.FormatNewest+1, state.FormatNewest)
}

func TestNewerLogEndsTheStart(t *testing.T) {
	dir := t.TempDir()
	_, end := serve(t, dir)
	if err := end(); err != nil {
		t.Fatal(err)
	}
	// The next version: it applies its own fact.
	st, _ := state.New(16)
	next := nextVersion{machine{st}}
	withMachine(t, dir, next, func(l *raftlog.Log) {
		if _, err := l.Propose(t.Context(), newerFact(t)); err != nil {
			t.Fatal(err)
		}
	})
	err := run(t, dir)
	var storage *raftlog.StorageError
	if !errors.As(err, &storage) || storage.Op != raftlog.OpDecode || !strings.Contains(err.Error(), newerSays()) || strings.Count(err.Error(), "\n") > 0 {
		t.Errorf("a log of the next format: %v", err)
	}
}

func TestNewerSnapshotEndsTheStart(t *testing.T) {
	dir := t.TempDir()
	_, end := serve(t, dir)
	if err := end(); err != nil {
		t.Fatal(err)
	}
	st, _ := state.New(16)
	withMachine(t, dir, nextVersion{machine{st}}, func(l *raftlog.Log) {
		if err := l.Snapshot(); err != nil {
			t.Fatal(err)
		}
	})
	err := run(t, dir)
	var storage *raftlog.StorageError
	if !errors.As(err, &storage) || !strings.Contains(err.Error(), newerSays()) || strings.Count(err.Error(), "\n") > 0 {
		t.Errorf("a snapshot of the next format: %v", err)
	}
}

// nextVersion is a machine that writes the format after the newest.
type nextVersion struct{ machine }

func (m nextVersion) Apply(index, term uint64, at int64, proposals [][]byte) []any {
	if len(proposals) == 1 && bytes.Contains(proposals[0], []byte("v9.1")) {
		return make([]any, 1)
	}
	return m.machine.Apply(index, term, at, proposals)
}

func (m nextVersion) Snapshot() (raftlog.Image, error) { return nextImage{}, nil }

type nextImage struct{}

func (nextImage) WriteTo(w io.Writer) (int64, error) {
	b, err := cbor.Marshal(map[int]any{1: "muster-state", 2: state.FormatNewest + 1, 3: "v9.1", 4: "anything"})
	if err != nil {
		return 0, err
	}
	n, err := w.Write(b)
	return int64(n), err
}

// run is how a server ends that cannot start.
func run(t *testing.T, dir string) error {
	t.Helper()
	cfg := config.Dev(1, muster.GiB)
	cfg.DataDir, cfg.Listen, cfg.LowWater = dir, "127.0.0.1:0", 1
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return Run(ctx, cfg, Options{NodeBinary: "/bin/false", Logger: slog.New(slog.DiscardHandler), Fatal: func(error) {}, Ready: func(string) {
		t.Error("it started")
		cancel()
	}})
}
