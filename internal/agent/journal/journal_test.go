package journal

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/boot"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

func TestLockOfARemovedDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	lock, err := TakeLock(t.Context(), dir, false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := TryLock(dir); !errors.Is(err, ErrLocked) {
		t.Errorf("a second lock: %v", err)
	}
	// Whoever opened the lock before the directory went must not have it afterwards.
	late, err := os.OpenFile(filepath.Join(dir, LockName), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = late.Close() }()
	if err := os.Rename(dir, dir+"-gone"); err != nil {
		t.Fatal(err)
	}
	lock.Release()
	if _, err := TryLock(dir); err == nil {
		t.Error("locked a directory that is not there")
	}
}

func TestRecordOfAnotherProcessIsNotAlive(t *testing.T) {
	start, ok := boot.ProcessStart(os.Getpid())
	if !ok {
		t.Fatal("own process not found")
	}
	own := Record{Pid: os.Getpid(), Start: start, Kernel: boot.ID()}
	if !own.Alive() {
		t.Error("own process is not alive")
	}
	for name, r := range map[string]Record{
		"pid given away": {Pid: own.Pid, Start: start - 1, Kernel: own.Kernel},
		"rebooted":       {Pid: own.Pid, Start: start, Kernel: "another"},
		"none":           {},
	} {
		if r.Alive() {
			t.Errorf("%s: alive", name)
		}
		if err := r.Kill(); err != nil { // were it not looked at first, this test would end here
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A journal is read as one history; a line that a power cut tore is not taken for a step.
func TestHistoryOfAnAllocation(t *testing.T) {
	dir := t.TempDir()
	if ids, err := MakeSandboxes(dir); err != nil || len(ids) != 0 {
		t.Fatalf("%v, %v", ids, err)
	}
	d := OfAlloc(dir, "u-0-1")
	if _, err := d.Read(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no journal, and read: %v", err)
	}
	steps := []Step{{Begun: &Begun{Runtime: "process", At: 5}}, {Ran: 6}, {Begun: &Begun{Runtime: "oci", At: 7, Image: "sha256:1"}}, {Ready: 8}}
	if err := d.Create(&wire.AllocSpec{Job: "j"}); err != nil {
		t.Fatal(err)
	}
	for _, s := range steps {
		if err := d.Append(s); err != nil {
			t.Fatal(err)
		}
	}
	got, err := d.Read()
	if err != nil || !got.Whole || got.Begins != 2 || got.Begun.Image != "sha256:1" || got.Ran != 6 || got.Ready != 8 || got.Spec.Job != "j" || got.End != nil {
		t.Errorf("%+v, %v", got, err)
	}
	if unended, err := d.Unended(); !unended || err != nil {
		t.Errorf("unended: %v, %v", unended, err)
	}
	if err := d.Append(Step{End: &wire.AllocReport{ID: "u-0-1"}}); err != nil {
		t.Fatal(err)
	}
	if unended, err := d.Unended(); unended || err != nil {
		t.Errorf("unended: %v, %v", unended, err)
	}
	path := filepath.Join(string(d), allocName)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b[:len(b)-5], 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := d.Read(); err != nil || got.Whole || got.End != nil || got.Ready != 8 {
		t.Errorf("torn: %+v, %v", got, err)
	}
	for range 2 {
		if err := d.Disown(); err != nil {
			t.Fatal(err)
		}
	}
	if ids, err := MakeSandboxes(dir); err != nil || !slices.Equal(ids, []muster.AllocID{"u-0-1"}) {
		t.Errorf("%v, %v", ids, err)
	}
	if err := d.Remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(string(d)); !errors.Is(err, os.ErrNotExist) {
		t.Error("it is still there")
	}
}
