package userns

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// ordinary is a user whom no machine has.
const ordinary = 912_347

// asOrdinaryUser runs this test once more as an ordinary user, and reports whether this is that
// process. The directory is the user's.
func asOrdinaryUser(t *testing.T) (dir string, is bool) {
	t.Helper()
	if os.Geteuid() != 0 {
		return t.TempDir(), true
	}
	made, err := os.MkdirTemp("", "muster-userns-")
	if err != nil {
		t.Fatal(err)
	}
	// Not by the name of the result, which is empty by then.
	t.Cleanup(func() {
		if err := os.RemoveAll(made); err != nil {
			t.Error(err)
		}
	})
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(made, "userns.test")
	if err := errors.Join(os.WriteFile(file, program, 0o755), os.Chmod(file, 0o755), os.Chown(made, ordinary, ordinary)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(file, "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Dir, cmd.Env = made, append(os.Environ(), "TMPDIR="+made, "HOME="+made)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: ordinary, Gid: ordinary}, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	switch text := string(out); {
	case err != nil:
		t.Errorf("%v\n%s", err, out)
	case strings.Contains(text, "--- SKIP"):
		t.Skip(text)
	case !strings.Contains(text, "--- PASS"):
		t.Errorf("nothing was tried:\n%s", text)
	}
	return "", false
}

func TestSubordinateRanges(t *testing.T) {
	const text = `# a comment
other:100000:65536
me:200000:10
me:300000:65536
1000:400000:5
me:bad:5
me:0:99999999
`
	if got := subordinate(text, "me", "1000"); got != (span{300000, 65536}) {
		t.Errorf("range %+v", got)
	}
	if got := subordinate(text, "nobody", "1000"); got != (span{400000, 5}) {
		t.Errorf("range by number %+v", got)
	}
	if got := subordinate(text, "nobody", "1"); got.count != 0 {
		t.Errorf("range of a stranger %+v", got)
	}
}

// The setting that denies user namespaces is named with what root can do.
func TestRefusalNamesTheSetting(t *testing.T) {
	for _, s := range settings {
		read := func(file string) ([]byte, error) {
			if file == s.file {
				return []byte(s.value + "\n"), nil
			}
			return nil, fs.ErrNotExist
		}
		if why := refusedBy(read); !strings.Contains(why, "sysctl -w "+s.name) {
			t.Errorf("%s: %q", s.file, why)
		}
	}
	if why := refusedBy(func(string) ([]byte, error) { return nil, fs.ErrNotExist }); why != "" {
		t.Errorf("nothing denies it, and it is refused: %q", why)
	}
}

func TestOlderKernels(t *testing.T) {
	for release, want := range map[string]bool{"4.19.0-1": true, "5.10.0-28-amd64": true, "5.11.0": false, "6.1.0-9\n": false, "odd": false} {
		if got := older(release); got != want {
			t.Errorf("%q is older: %v", release, got)
		}
	}
}

func TestRefusalNamesTheProgram(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if why := Refusal(t.Context(), ""); !strings.Contains(why, "they need crun") {
		t.Errorf("refused with %q", why)
	}
}

// Run has the user be root, and RemoveAll deletes what the user alone could not.
func TestRunIsRoot(t *testing.T) {
	dir, is := asOrdinaryUser(t)
	if !is {
		return
	}
	if err := exec.Command("unshare", "--user", "--map-root-user", "true").Run(); err != nil {
		t.Skip("no user namespace here:", err)
	}
	if err := Run(t.Context(), "sh", "-c", `[ "$(id -u)" = 0 ]`); err != nil {
		t.Error(err)
	}
	if err := Run(t.Context(), "sh", "-c", "echo said >&2; exit 3"); err == nil || !strings.Contains(err.Error(), "said") {
		t.Errorf("failed with %v", err)
	}
	tree := filepath.Join(dir, "tree")
	if err := os.MkdirAll(filepath.Join(tree, "closed", "below"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(tree, "closed"), 0); err != nil {
		t.Fatal(err)
	}
	if err := RemoveAll(tree); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(tree); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
}

// A holder is found again, and a new one is made when it has died; then that is said.
func TestHolder(t *testing.T) {
	dir, is := asOrdinaryUser(t)
	if !is {
		return
	}
	program := filepath.Join(dir, "holder")
	if err := os.WriteFile(program, []byte("#!/bin/sh\nexec sleep 1000\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := exec.Command("unshare", "--user", "--map-root-user", "--net", "true").Run(); err != nil {
		t.Skip("no user namespace here:", err)
	}
	t.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin")
	first, err := Open(t.Context(), dir, program, "/delegated")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := End(dir); err != nil {
			t.Error(err)
		}
	})
	if first.Lost || first.IDs.Count < 1 || first.IDs.Count == 1 && first.IDs.Why == "" {
		t.Errorf("holder %+v", first)
	}
	again, err := Open(t.Context(), dir, program, "/delegated")
	if err != nil || again.Pid != first.Pid || again.Lost {
		t.Errorf("found %+v, %v, want %+v", again, err, first)
	}
	if now, err := Current(dir); err != nil || now.Pid != first.Pid || Cgroup(dir) != "/delegated" {
		t.Errorf("current %+v, %v, cgroup %q", now, err, Cgroup(dir))
	}
	died := make(chan error)
	go func() { died <- again.Await() }()
	if err := first.end(); err != nil {
		t.Fatal(err)
	}
	if err := <-died; err == nil || !strings.Contains(err.Error(), "has ended") {
		t.Errorf("its end is told as %v", err)
	}
	if _, err := Current(dir); err == nil {
		t.Error("a holder that has died is found")
	}
	next, err := Open(t.Context(), dir, program, "")
	if err != nil || next.Pid == first.Pid || !next.Lost {
		t.Errorf("the next holder %+v, %v", next, err)
	}
}
