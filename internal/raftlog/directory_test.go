package raftlog

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestSecondServerIsRefused(t *testing.T) {
	dir := t.TempDir()
	r := start(t, small(dir, &recorder{}))
	_, err := Open(small(dir, &recorder{}))
	want := fmt.Sprintf("data directory %s: in use by another server, process %d", dir, os.Getpid())
	if !errors.Is(err, ErrLocked) || err.Error() != want {
		t.Errorf("got %v, want %q", err, want)
	}
	if _, err := Restore(dir, bytes.NewReader(nil)); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("restore over a running server: %v", err)
	}
	r.mustPropose(t, "unharmed")
	r.mustStop(t)
	start(t, small(dir, &recorder{}))
}

func TestLockOfADeadServer(t *testing.T) {
	dir := t.TempDir()
	cmd := childCommand(t, dir, "0", "")
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	_, err = Open(small(dir, &recorder{}))
	if !errors.Is(err, ErrLocked) || !strings.HasSuffix(err.Error(), fmt.Sprintf("process %d", cmd.Process.Pid)) {
		t.Errorf("while it lives: %v", err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	start(t, small(dir, &recorder{}))
}

func TestDirectoriesThatAreRefused(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(dir string) error
		is   error
		says string
	}{
		{"newer", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, formatName), []byte(`{"format":7,"server":"x","what":"ever"}`), 0o600)
		}, ErrNewer, "written by a newer version of muster: it has format 7 and this version knows 1"},
		{"nonsense", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, formatName), []byte(`hello`), 0o600)
		}, ErrDamaged, `the file "format" makes no sense`},
		{"no format", func(dir string) error {
			return os.Remove(filepath.Join(dir, formatName))
		}, ErrDamaged, `it has "log" but no "format"`},
		{"no log", func(dir string) error {
			return os.RemoveAll(filepath.Join(dir, logName))
		}, ErrDamaged, `it has snapshots but no "log"`},
		{"no snapshots", func(dir string) error {
			return os.RemoveAll(filepath.Join(dir, snapshotName))
		}, ErrDamaged, "are gone and no snapshot has them"},
		{"a segment is missing", func(dir string) error {
			names, err := filepath.Glob(filepath.Join(dir, logName, "*.wal"))
			if err != nil || len(names) < 2 {
				return fmt.Errorf("%d segments, %w", len(names), err)
			}
			return os.Remove(names[0])
		}, fs.ErrNotExist, "cannot read the log"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			conf := small(dir, &recorder{})
			conf.SegmentSize, conf.SnapshotEvery = 16<<10, 100
			r := start(t, conf)
			for i := range 400 {
				r.mustPropose(t, strings.Repeat("x", 100)+name(i))
			}
			if err := r.Snapshot(); err != nil {
				t.Fatal(err)
			}
			for i := range 200 {
				r.mustPropose(t, strings.Repeat("x", 100)+name(i))
			}
			r.mustStop(t)
			if err := c.do(dir); err != nil {
				t.Fatal(err)
			}
			_, err := Open(conf)
			if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), dir) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v", err)
			}
			if _, err := Open(conf); errors.Is(err, ErrLocked) {
				t.Errorf("a refused Open keeps the lock: %v", err)
			}
		})
	}
}

// A crash between raft's first record and its first entry must not leave a
// directory that can neither begin nor go on.
func TestCutShortFounding(t *testing.T) {
	dir := t.TempDir()
	d, err := openDirectory(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.begin(); err != nil {
		t.Fatal(err)
	}
	s := openTestStore(t, d.file(logName))
	if err := errors.Join(s.SetUint64(keyCurrentTerm, 1), s.close(), d.close()); err != nil {
		t.Fatal(err)
	}
	r := start(t, small(dir, &recorder{}))
	r.mustPropose(t, "x")
}

func TestDamagedSnapshots(t *testing.T) {
	dir := t.TempDir()
	conf := small(dir, &recorder{})
	conf.SegmentSize = 16 << 10
	r := start(t, conf)
	var want []string
	for i := range 600 {
		want = append(want, strings.Repeat("x", 100)+name(i))
		r.mustPropose(t, want[i])
		if i%100 == 99 {
			if err := r.Snapshot(); err != nil {
				t.Fatal(err)
			}
		}
	}
	r.mustStop(t)
	images, err := filepath.Glob(filepath.Join(dir, snapshotName, "*"))
	if err != nil || len(images) != DefaultSnapshotRetain {
		t.Fatalf("%d snapshots, %v", len(images), err)
	}
	flip := func(name string) {
		t.Helper()
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		b[len(b)/2] ^= 1
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// A leftover of a crash goes, and the newest is passed over.
	leftover := filepath.Join(dir, snapshotName, "00000000000000000009-1.image.tmp")
	if err := os.WriteFile(leftover, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	flip(images[1])
	m := &recorder{}
	conf.Machine = m
	r = start(t, conf)
	if err := r.Barrier(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := m.list(); !slices.Equal(got, want) {
		t.Errorf("%d applied, want %d: the older snapshot and the log have everything", len(got), len(want))
	}
	if _, err := os.Stat(leftover); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the leftover: %v", err)
	}
	r.mustStop(t)
	flip(images[0])
	conf.Machine = &recorder{}
	if _, err := Open(conf); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("with no good snapshot: %v", err)
	}
}

func TestMachineThatCannotRestore(t *testing.T) {
	dir := t.TempDir()
	r := start(t, small(dir, &recorder{}))
	r.mustPropose(t, "x")
	if err := r.Snapshot(); err != nil {
		t.Fatal(err)
	}
	r.mustStop(t)
	broken := errors.New("rows of a kind that nobody knows")
	if _, err := Open(small(dir, &recorder{broken: broken})); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	r = start(t, small(dir, &recorder{}))
	r.machine.mu.Lock()
	r.machine.broken = broken
	r.machine.mu.Unlock()
	r.mustPropose(t, "y")
	if err := r.Snapshot(); err == nil || !strings.Contains(err.Error(), broken.Error()) {
		t.Errorf("a snapshot that the machine refuses: %v", err)
	}
	r.mustPropose(t, "it goes on")
}

func TestBackupAndRestore(t *testing.T) {
	m := &recorder{}
	r := start(t, small(t.TempDir(), m))
	for i := range 500 {
		r.mustPropose(t, name(i))
	}
	// Under load: what was confirmed before the call is in it, whole.
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				_, _ = r.Propose(ctx, []byte(fmt.Sprintf("late/%d/%d", w, i)))
			}
		})
	}
	var file bytes.Buffer
	info, err := r.Backup(t.Context(), &file)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	wg.Wait()
	_, term, _ := m.seen()
	if _, is := r.Restored(); is {
		t.Error("this one was not restored")
	}
	r.mustStop(t)

	dir := filepath.Join(t.TempDir(), "new")
	got, err := Restore(dir, bytes.NewReader(file.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	if got != info || info.Index == 0 || info.Made.IsZero() {
		t.Errorf("restored %+v, backup was %+v", got, info)
	}
	n := &recorder{}
	r = start(t, small(dir, n))
	all := n.list()
	if len(all) < 500 || all[0] != name(0) || all[499] != name(499) {
		t.Fatalf("%d restored", len(all))
	}
	if from, is := r.Restored(); !is || from != info {
		t.Errorf("Restored: %+v, %v", from, is)
	}
	res := r.mustPropose(t, "new epoch")
	if res.Index <= info.Index || res.Term <= term {
		t.Errorf("index %d after %d, term %d after %d: what was fenced must stay fenced", res.Index, info.Index, res.Term, term)
	}
	if _, _, at := n.seen(); at < info.Made.UnixMicro() {
		t.Error("time went back")
	}
	r.mustStop(t)

	r = start(t, small(dir, &recorder{}))
	if _, is := r.Restored(); !is {
		t.Error("the mark went before it was taken")
	}
	if err := errors.Join(r.TakeRestored(), r.TakeRestored()); err != nil {
		t.Fatal(err)
	}
	if _, is := r.Restored(); is {
		t.Error("the mark was taken and is there")
	}
	r.mustPropose(t, "more")
	r.mustStop(t)
	o := &recorder{}
	r = start(t, small(dir, o))
	if _, is := r.Restored(); is {
		t.Error("the mark came back")
	}
	if err := r.Barrier(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := o.list(); !slices.Equal(got, append(all, "new epoch", "more")) {
		t.Errorf("%d after the restart, want %d", len(got), len(all)+2)
	}
}

func TestBackupsThatAreRefused(t *testing.T) {
	r := start(t, small(t.TempDir(), &recorder{}))
	for i := range 100 {
		r.mustPropose(t, strings.Repeat("x", 10000)+name(i))
	}
	var file bytes.Buffer
	made, err := r.Backup(t.Context(), &file)
	if err != nil {
		t.Fatal(err)
	}
	b := file.Bytes()
	if read, err := ReadBackup(bytes.NewReader(b)); err != nil || read != made {
		t.Errorf("read back %+v, made %+v, %v", read, made, err)
	}
	flipped := bytes.Clone(b)
	flipped[len(b)/2] ^= 1
	newer := bytes.Clone(b)
	newer[7]++
	for _, c := range []struct {
		name string
		b    []byte
		is   error
	}{
		{"cut short", b[:len(b)-1], ErrDamaged},
		{"half", b[:len(b)/2], ErrDamaged},
		{"empty", nil, ErrDamaged},
		{"a bit", flipped, ErrDamaged},
		{"more", append(bytes.Clone(b), 'x'), ErrDamaged},
		{"something else", []byte(strings.Repeat("hello", 100)), ErrDamaged},
		{"newer", newer, ErrNewer},
	} {
		dir := t.TempDir()
		_, err := Restore(dir, bytes.NewReader(c.b))
		if !errors.Is(err, c.is) {
			t.Errorf("%s: %v", c.name, err)
		}
		if _, err := ReadBackup(bytes.NewReader(c.b)); !errors.Is(err, c.is) {
			t.Errorf("%s, read only: %v", c.name, err)
		}
		if empty, err := emptyBut(dir); err != nil || !empty {
			t.Errorf("%s: something is left in the directory (%v)", c.name, err)
		}
	}
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "mine"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Restore(full, bytes.NewReader(b)); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("into a directory that is not empty: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Backup(ctx, &file); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// Somebody else was quicker, between the look at the directory and the lock.
func TestRestoreLeavesAloneWhatOthersMade(t *testing.T) {
	r := start(t, small(t.TempDir(), &recorder{}))
	r.mustPropose(t, "x")
	var file bytes.Buffer
	if _, err := r.Backup(t.Context(), &file); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if _, err := Restore(dir, bytes.NewReader(file.Bytes())); err != nil { // the quick one
		t.Fatal(err)
	}
	d, err := openDirectory(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.restoreIfEmpty(bytes.NewReader(file.Bytes())); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("got %v", err)
	}
	if err := d.close(); err != nil {
		t.Fatal(err)
	}
	m := &recorder{}
	start(t, small(dir, m))
	if got := m.list(); !slices.Equal(got, []string{"x"}) {
		t.Errorf("%q is left of what the quick one restored", got)
	}
}

// A restore that was killed half-way is seen.
func TestCutShortRestore(t *testing.T) {
	r := start(t, small(t.TempDir(), &recorder{}))
	r.mustPropose(t, "x")
	var file bytes.Buffer
	if _, err := r.Backup(t.Context(), &file); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if _, err := Restore(dir, &file); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, formatName)); err != nil { // it is written last
		t.Fatal(err)
	}
	if _, err := Open(small(dir, &recorder{})); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "restore was cut short") {
		t.Errorf("got %v", err)
	}
}
