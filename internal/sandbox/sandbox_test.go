package sandbox

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// TestIgnoreSignals: a child gets the default dispositions although this process ignores them.
func TestIgnoreSignals(t *testing.T) {
	if err := ignoreSignals(); err != nil {
		t.Fatal(err)
	}
	own, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	if mask := ignored(t, string(own)); mask>>(uint(syscall.SIGTERM)-1)&1 == 0 {
		t.Errorf("TERM is not ignored: %x", mask)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	pid, err := syscall.ForkExec("/bin/cat", []string{"cat", "/proc/self/status"}, &syscall.ProcAttr{Files: []uintptr{0, w.Fd(), 2}})
	_ = w.Close()
	if err != nil {
		t.Fatal(err)
	}
	var status bytes.Buffer
	if _, err := status.ReadFrom(r); err != nil {
		t.Fatal(err)
	}
	if _, err := syscall.Wait4(pid, nil, 0, nil); err != nil {
		t.Fatal(err)
	}
	if mask := ignored(t, status.String()); mask != 0 {
		t.Errorf("the child ignores %x", mask)
	}
}

func ignored(t *testing.T, status string) uint64 {
	t.Helper()
	for line := range strings.Lines(status) {
		if v, ok := strings.CutPrefix(line, "SigIgn:"); ok {
			mask, err := strconv.ParseUint(strings.TrimSpace(v), 16, 64)
			if err != nil {
				t.Fatal(err)
			}
			return mask
		}
	}
	t.Fatal("no SigIgn")
	return 0
}
