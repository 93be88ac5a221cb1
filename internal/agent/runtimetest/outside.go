package runtimetest

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func (r *rig) processes(mark string) []string { return Processes(mark) }

// Processes are the living processes of sandboxes, as found in /proc: by the mark in
// their environment, which the suite gives to every command, or in their command line.
func Processes(mark string) (found []string) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return []string{err.Error()}
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		environ, _ := os.ReadFile("/proc/" + e.Name() + "/environ")
		cmdline, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if !bytes.Contains(environ, []byte(mark)) && !bytes.Contains(cmdline, []byte(mark)) {
			continue
		}
		// A process without memory left is on its way out and may only wait to be reaped by somebody else.
		if stat, err := os.ReadFile("/proc/" + e.Name() + "/stat"); err != nil || dead(string(stat)) {
			continue
		}
		found = append(found, e.Name()+" "+strings.ReplaceAll(string(cmdline), "\x00", " "))
	}
	return found
}

func dead(stat string) bool {
	_, after, _ := strings.Cut(stat[strings.LastIndexByte(stat, ')')+1:], " ")
	return after == "" || after[0] == 'Z' || after[0] == 'X'
}

func (r *rig) cgroupsNamed(mark string) []string { return Cgroups(mark) }

// Cgroups are the cgroup directories whose name holds the mark.
func Cgroups(mark string) (found []string) {
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.Contains(d.Name(), mark) {
			found = append(found, path)
		}
		return nil
	})
	return found
}

// checkNothingLeft runs when every sandbox of the case was removed.
func (r *rig) checkNothingLeft() {
	if r.suite.Scripted || r.Skipped() {
		return
	}
	// A killed process takes a moment to leave /proc.
	deadline := time.Now().Add(5 * time.Second)
	left := r.processes(r.uid)
	for len(left) > 0 && time.Now().Before(deadline) {
		time.Sleep(5 * time.Millisecond)
		left = r.processes(r.uid)
	}
	if len(left) > 0 {
		r.Errorf("processes are left: %q", left)
	}
	if groups := r.cgroupsNamed(r.uid); len(groups) > 0 {
		r.Errorf("cgroups are left: %q", groups)
	}
	if r.suite.Leftovers != nil {
		if left := r.suite.Leftovers(r.uid); len(left) > 0 {
			r.Errorf("left: %q", left)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err == nil && bytes.Contains(mounts, []byte(r.uid)) {
		r.Errorf("mounts are left:\n%s", mounts)
	}
}

func kill(r *rig, pid int) {
	r.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		r.Fatal(err)
	}
	r.until("the killed process is gone", func() bool {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		return err != nil || dead(string(stat))
	})
}
