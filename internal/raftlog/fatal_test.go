package raftlog

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// older is a machine of a version that knows only so many proposals.
type older struct {
	recorder
	known int
	after atomic.Int64 // entries after the one that it does not understand
	met   bool
}

var errUnknownKind = errors.New("a fact of kind 99")

func (o *older) Apply(index, term uint64, at int64, proposals [][]byte) []any {
	if o.met {
		o.after.Add(1)
	}
	out := o.recorder.Apply(index, term, at, proposals)
	if n := len(o.list()) - o.known; n > 0 && len(out) > 0 {
		o.met = true
		out[len(out)-1] = fmt.Errorf("proposal %d: %w", len(out), &Fatal{errUnknownKind})
	}
	return out
}

func sentence(dir string, index uint64) string {
	return fmt.Sprintf("data directory %s: this version cannot read the log: "+
		"entry %d: proposal 1: a fact of kind 99", dir, index)
}

// A log goes to a version that is older than the one that wrote it, and back.
func TestEntryThatIsNotUnderstood(t *testing.T) {
	dir := t.TempDir()
	r := start(t, small(dir, &recorder{}))
	var index uint64
	var want []string
	for i := range 10 {
		if res := r.mustPropose(t, name(i)); i == 6 {
			index = res.Index
		}
		want = append(want, name(i))
	}
	r.mustStop(t)

	o := &older{known: 6}
	c := small(dir, o)
	var told []string
	c.Fatal = func(err error) { told = append(told, err.Error()) }
	r = startFollower(t, c)
	select {
	case err := <-r.end:
		r.end <- err
	case <-time.After(20 * time.Second):
		t.Fatal("it goes on")
	}
	err := r.stop()
	var storage *StorageError
	if !errors.As(err, &storage) || storage.Op != OpDecode || !errors.Is(err, errUnknownKind) || err.Error() != sentence(dir, index) {
		t.Errorf("Run: %v", err)
	}
	if !slices.Equal(told, []string{sentence(dir, index)}) {
		t.Errorf("Fatal: %q", told)
	}
	if n := o.after.Load(); n > 0 {
		t.Errorf("%d entries were applied after it", n)
	}
	if r.Applied() >= index {
		t.Errorf("applied up to %d, and %d was not understood", r.Applied(), index)
	}
	if _, err := r.Backup(t.Context(), &bytes.Buffer{}); !errors.Is(err, errUnknownKind) {
		t.Errorf("a backup of half an entry: %v", err)
	}

	m := &recorder{}
	r = start(t, small(dir, m))
	if err := r.Barrier(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := m.list(); !slices.Equal(got, want) {
		t.Errorf("with the version that wrote it: %q", got)
	}
}

// While it runs: who proposed it does not hear that nothing happened.
func TestProposalThatIsNotUnderstood(t *testing.T) {
	c := small(t.TempDir(), &older{known: 1})
	r := start(t, c)
	if _, err := r.Propose(t.Context(), []byte("known")); err != nil {
		t.Fatal(err)
	}
	var storage *StorageError
	if _, err := r.Propose(t.Context(), []byte("unknown")); !errors.Is(err, ErrAmbiguous) || !errors.As(err, &storage) {
		t.Errorf("got %v", err)
	}
	if _, err := r.Propose(t.Context(), []byte("after")); !errors.As(err, &storage) || errors.Is(err, ErrAmbiguous) {
		t.Errorf("after it: %v", err)
	}
	if err := r.Snapshot(); err == nil {
		t.Error("a snapshot was taken")
	}
	if err := r.stop(); !errors.As(err, &storage) {
		t.Errorf("Run: %v", err)
	}
}

// A follower may be given it before Open is through.
func TestNotUnderstoodInOpen(t *testing.T) {
	dir := t.TempDir()
	o := &older{known: 0}
	c := small(dir, o)
	c.Fatal = func(err error) { t.Errorf("Fatal while opening: %v", err) }
	l, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	l.latch.armed.Store(false)
	entry := &raft.Log{Index: 7, Term: 1, Data: encodeEntry(1, [][]byte{[]byte("x")})}
	var storage *StorageError
	for range 2 {
		if out := l.driver.Apply(entry).(*outcome); !errors.Is(out.err, errUnknownKind) {
			t.Errorf("got %v", out.err)
		}
	}
	if n := o.after.Load(); n > 0 {
		t.Errorf("%d entries were applied after it", n)
	}
	if err := l.arm(); !errors.As(err, &storage) || err.Error() != sentence(dir, 7) {
		t.Errorf("Open: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// With the default Fatal, in a process of its own.
func TestNotUnderstoodExits74(t *testing.T) {
	dir := t.TempDir()
	cmd := childCommand(t, dir, "0", string(OpDecode))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.Output()
	if cmd.ProcessState.ExitCode() != 74 {
		t.Fatalf("exit status %d (%v), stderr %q", cmd.ProcessState.ExitCode(), err, stderr.String())
	}
	want := fmt.Sprintf("muster: data directory %s: this version cannot read the log: entry ", dir)
	if got := stderr.String(); !strings.HasPrefix(got, want) || strings.Count(got, "\n") != 1 {
		t.Errorf("stderr %q, want %q", got, want)
	}
	checkConfirmed(t, dir, acknowledged(out, nil))
}
