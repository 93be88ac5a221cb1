package raftlog

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// hammer proposes from several goroutines until each has met an error, and
// gives what was confirmed. Before every proposal of goroutine 0, each is called.
func hammer(t *testing.T, r *running, tag string, each func()) (confirmed []string) {
	t.Helper()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for w := range 6 {
		wg.Go(func() {
			for i := 0; ; i++ {
				if w == 0 && each != nil {
					each()
				}
				p := fmt.Sprintf("%s/%d/%d/%s", tag, w, i, strings.Repeat("y", 200))
				if _, err := r.Propose(t.Context(), []byte(p)); err != nil {
					var storage *StorageError
					if !errors.As(err, &storage) && !errors.Is(err, ErrNotLeader) && !errors.Is(err, ErrStopping) && !errors.Is(err, ErrAmbiguous) {
						t.Errorf("%s: %v", tag, err)
					}
					return
				}
				mu.Lock()
				confirmed = append(confirmed, p)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return confirmed
}

// check that a directory holds everything confirmed, and each thing once.
func check(t *testing.T, c Config, confirmed []string) {
	t.Helper()
	m := &recorder{}
	c.Machine, c.Fault = m, nil
	r := start(t, c)
	if err := r.Barrier(t.Context()); err != nil {
		t.Fatal(err)
	}
	counts := m.counts()
	for _, p := range confirmed {
		if counts[p] == 0 {
			t.Fatalf("%.30s was confirmed and is lost", p)
		}
	}
	for p, n := range counts {
		if n > 1 && p != "goes on" {
			t.Fatalf("%.30s was applied %d times", p, n)
		}
	}
	r.mustPropose(t, "goes on")
	r.mustStop(t)
}

// S-H8: who holds all descriptors must not end the server: a snapshot that cannot be begun for want of them is taken later.
func TestSnapshotWaitsForDescriptors(t *testing.T) {
	for _, shortage := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM} {
		dir := t.TempDir()
		var short atomic.Bool
		conf := small(dir, &recorder{})
		conf.Fault = func(op Op, path string) error {
			if op == OpSnapshotCreate && short.Load() {
				return &os.PathError{Op: "open", Path: path, Err: shortage}
			}
			return nil
		}
		conf.Fatal = func(err error) { t.Errorf("the server ends: %v", err) }
		r := start(t, conf)
		r.mustPropose(t, "one")
		short.Store(true)
		if err := r.Snapshot(); err == nil || !strings.HasSuffix(err.Error(), shortage.Error()) { // raft keeps the words alone
			t.Errorf("a snapshot without descriptors: %v", err)
		}
		r.mustPropose(t, "goes on")
		short.Store(false)
		if err := r.Snapshot(); err != nil {
			t.Errorf("a snapshot with descriptors again: %v", err)
		}
		r.mustStop(t)
	}
}

// Each operation fails once, from then on nothing is written, nothing is
// confirmed, the sentence names the directory and the cause, and after a
// restart everything confirmed is there.
func TestFirstStorageErrorIsTheLast(t *testing.T) {
	for _, c := range []struct {
		op    Op
		after int64 // it happens this many times first
		err   error
	}{
		{OpStore, 40, errors.New("made to fail")},
		{OpWrite, 40, syscall.ENOSPC},
		{OpSync, 40, syscall.EIO},
		{OpSegment, 2, syscall.ENOSPC},
		{OpMeta, 2, syscall.ENOSPC},
		{OpCompact, 1, syscall.EIO},
		{OpDelete, 1, syscall.EIO},
		{OpSnapshotCreate, 1, syscall.ENOSPC},
		{OpSnapshotWrite, 2, syscall.ENOSPC},
		{OpSnapshotSync, 1, syscall.EIO},
		{OpSnapshotKeep, 1, syscall.ENOSPC},
	} {
		t.Run(string(c.op), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			var opened, failed atomic.Bool
			var seen, fatals atomic.Int64
			var sentence atomic.Value
			conf := small(dir, &recorder{})
			conf.SegmentSize = 32 << 10
			conf.SnapshotEvery = 30
			conf.SnapshotBytes = 16 << 10
			conf.Fault = func(op Op, path string) error {
				if failed.Load() && op != OpRead {
					t.Errorf("after the failure: %s %s", op, path)
				}
				if op == c.op && opened.Load() && seen.Add(1) > c.after {
					return c.err
				}
				return nil
			}
			conf.Fatal = func(err error) {
				failed.Store(true)
				fatals.Add(1)
				sentence.Store(err.Error())
			}
			r := start(t, conf)
			opened.Store(true)
			confirmed := hammer(t, r, "a", nil)
			err := r.stop()
			var storage *StorageError
			if !errors.As(err, &storage) || storage.Op != c.op || !errors.Is(err, c.err) {
				t.Errorf("Run: %v", err)
			}
			if fatals.Load() != 1 {
				t.Errorf("Fatal was called %d times", fatals.Load())
			}
			want := fmt.Sprintf("data directory %s: cannot %s: %v", dir, c.op, c.err)
			if got := sentence.Load(); got != want {
				t.Errorf("sentence %q, want %q", got, want)
			}
			if _, err := r.Propose(t.Context(), []byte("after")); !errors.As(err, &storage) {
				t.Errorf("a proposal after it: %v", err)
			}
			t.Logf("%d confirmed before it failed", len(confirmed))
			check(t, conf, confirmed)
		})
	}
}

func TestVoteThatCannotBeRecorded(t *testing.T) {
	dir := t.TempDir()
	conf := small(dir, &recorder{})
	r := start(t, conf)
	r.mustPropose(t, "x")
	r.mustStop(t)
	// Starting, raft records its term once more, which is asked about twice: by
	// what raft calls and by what raft-wal calls. Then comes the election.
	var n atomic.Int64
	conf.Fault = func(op Op, _ string) error {
		if op == OpVote && n.Add(1) > 2 {
			return syscall.EIO
		}
		return nil
	}
	conf.Machine = &recorder{}
	r = startFollower(t, conf)
	err := <-r.end
	r.end <- err
	var storage *StorageError
	if !errors.As(err, &storage) || storage.Op != OpVote {
		t.Errorf("Run: %v", err)
	}
	if r.IsLeader() {
		t.Error("it leads without a recorded vote")
	}
}

func TestOpenReportsStorageErrors(t *testing.T) {
	for _, op := range []Op{OpSegment, OpMeta, OpVote, OpStore, OpWrite, OpSync} {
		conf := small(t.TempDir(), &recorder{})
		conf.Fatal = func(err error) { t.Errorf("Fatal while opening: %v", err) }
		broken := true
		conf.Fault = func(o Op, _ string) error {
			if broken && o == op {
				return syscall.ENOSPC
			}
			return nil
		}
		_, err := Open(conf)
		var storage *StorageError
		if !errors.As(err, &storage) || !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), conf.Dir) {
			t.Errorf("%s: %v", op, err)
		}
		broken = false
		r := start(t, conf) // what was begun is no obstacle
		r.mustPropose(t, "x")
		r.mustStop(t)
	}
}

// A real file system that is full, and then has room again.
func TestDiskFull(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting a small tmpfs needs root")
	}
	mount := t.TempDir()
	if err := unix.Mount("tmpfs", mount, "tmpfs", 0, "size=6m"); err != nil {
		t.Skipf("mounting a small tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(mount, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	dir, filler := filepath.Join(mount, "data"), filepath.Join(mount, "filler")
	var confirmed []string
	ops := make(map[Op]int)
	for round := range 12 {
		conf := small(dir, &recorder{})
		conf.SegmentSize = 64 << 10
		conf.SnapshotEvery = 60
		conf.SnapshotBytes = 32 << 10
		r := start(t, conf)
		// Less room from round to round, so that different things find it full.
		fill(t, mount, filler, uint64(8<<10+round*24<<10))
		confirmed = append(confirmed, hammer(t, r, fmt.Sprint(round), nil)...)
		err := r.stop()
		var storage *StorageError
		if !errors.As(err, &storage) || !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("round %d: Run: %v", round, err)
		}
		ops[storage.Op]++
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
		check(t, conf, confirmed)
	}
	t.Logf("%d confirmed over 12 times without room, none lost; first met by: %v", len(confirmed), ops)
}

// fill leaves about room bytes free.
func fill(t *testing.T, mount, name string, room uint64) {
	t.Helper()
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	block := make([]byte, 4096)
	for {
		var st unix.Statfs_t
		if err := unix.Statfs(mount, &st); err != nil {
			t.Fatal(err)
		}
		if st.Bavail*uint64(st.Bsize) <= room {
			return
		}
		if _, err := f.Write(block); errors.Is(err, syscall.ENOSPC) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// The default Fatal, in a process of its own: one sentence, exit status 74.
func TestExit74(t *testing.T) {
	dir := t.TempDir()
	cmd := childCommand(t, dir, "0", string(OpSync))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.Output()
	if cmd.ProcessState.ExitCode() != 74 {
		t.Fatalf("exit status %d (%v), stderr %q", cmd.ProcessState.ExitCode(), err, stderr.String())
	}
	want := fmt.Sprintf("muster: data directory %s: cannot %s: broken on purpose; the server stops here, so that nothing it confirmed is lost\n", dir, OpSync)
	if stderr.String() != want {
		t.Errorf("stderr %q, want %q", stderr.String(), want)
	}
	checkConfirmed(t, dir, acknowledged(out, nil))
}

// acknowledged adds the lines of a child's output to a set.
func acknowledged(out []byte, into map[string]bool) map[string]bool {
	if into == nil {
		into = make(map[string]bool)
	}
	for len(out) > 0 {
		line, rest, whole := bytes.Cut(out, []byte("\n"))
		if whole && string(line) != "leads" {
			into[string(line)] = true
		}
		out = rest
	}
	return into
}

// checkConfirmed opens what a child left, and gives how many entries it has.
func checkConfirmed(t *testing.T, dir string, confirmed map[string]bool) (applied int, log string) {
	t.Helper()
	m := &recorder{}
	c := small(dir, m)
	c.SegmentSize = 32 << 10
	var mu sync.Mutex
	var b bytes.Buffer
	c.Logger = infoLogger(locked{&mu, &b})
	r := start(t, c)
	if err := r.Barrier(t.Context()); err != nil {
		t.Fatal(err)
	}
	have := make(map[string]int)
	next := make(map[string]int) // per proposer: what comes next
	for _, p := range m.list() {
		parts := strings.SplitN(p, "/", 4)
		id := strings.Join(parts[:3], "/")
		have[id]++
		who := parts[0] + "/" + parts[1]
		if fmt.Sprint(next[who]) != parts[2] {
			t.Fatalf("%s comes where %d should", id, next[who])
		}
		next[who]++
	}
	for id := range confirmed {
		if have[id] != 1 {
			t.Fatalf("%s was confirmed and is there %d times", id, have[id])
		}
	}
	r.mustStop(t)
	return len(m.list()), locked{&mu, &b}.String()
}

// A server killed with -9 again and again, in the middle of everything.
func TestKill9(t *testing.T) {
	rounds := 40
	if testing.Short() {
		rounds = 8
	}
	dir := t.TempDir()
	confirmed := make(map[string]bool)
	var torn, rotations, early int
	for round := range rounds {
		cmd := childCommand(t, dir, fmt.Sprint(round), "")
		cmd.Stderr = os.Stderr
		cmd.WaitDelay = 5 * time.Second
		pipe, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		out := bufio.NewReader(pipe)
		if round%4 != 0 { // each fourth is killed at any moment of its start
			if _, err := out.ReadString('\n'); err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
		}
		timer := time.AfterFunc(time.Duration(rand.Int64N(int64(60*time.Millisecond))), func() { _ = cmd.Process.Kill() })
		var got bytes.Buffer
		_, _ = got.ReadFrom(out)
		_ = cmd.Wait()
		timer.Stop()
		if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGKILL {
			t.Fatalf("round %d: the child ended by itself: %v", round, cmd.ProcessState)
		}
		if got.Len() == 0 {
			early++
		}
		acknowledged(got.Bytes(), confirmed)
		if round%3 == 0 { // else the next child finds what this one left
			continue
		}
		_, log := checkConfirmed(t, dir, confirmed)
		torn += strings.Count(log, "cut-short-write=true")
		rotations += strings.Count(log, "half-finished-rotation=true")
	}
	applied, _ := checkConfirmed(t, dir, confirmed)
	t.Logf("killed %d times (%d before the first confirmation): %d confirmed, all there, each once, in order; %d applied; "+
		"%d torn writes cleared and %d rotations finished where this process looked",
		rounds, early, len(confirmed), applied, torn, rotations)
	if !testing.Short() && len(confirmed) < 1000 {
		t.Errorf("only %d were confirmed: this tested little", len(confirmed))
	}
}
