package oci

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/musterhq/muster/internal/agent/cgroup"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/initbox"
	"github.com/musterhq/muster/internal/agent/runtimetest"
)

const (
	// userVariable is set in the process that is root of an ordinary user's namespace.
	userVariable = "MUSTER_TEST_ORDINARY_USER"
	// ordinary is a user whom no machine has.
	ordinary = 912_345
)

// asOrdinaryUser runs this test once more as root of a user namespace that an ordinary user made, in a cgroup: -1 is that of this
// process. It reports whether this is that process.
func asOrdinaryUser(t *testing.T, group int) bool {
	t.Helper()
	if os.Getenv(userVariable) != "" {
		return true
	}
	if os.Geteuid() != 0 {
		t.Skip("becoming an ordinary user needs root")
	}
	if _, err := exec.LookPath("crun"); err != nil {
		t.Skip(err)
	}
	// Not below directories that are closed to others.
	dir, err := os.MkdirTemp("", "muster-user-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := errors.Join(os.Chmod(dir, 0o711), os.Mkdir(filepath.Join(dir, "tmp"), 0o700), os.Chown(filepath.Join(dir, "tmp"), ordinary, ordinary)); err != nil {
		t.Fatal(err)
	}
	for name, from := range map[string]string{"oci.test": "/proc/self/exe", "muster-init": initPath} {
		copyProgram(t, from, filepath.Join(dir, name))
	}
	user := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: ordinary, Gid: ordinary}, Pdeathsig: syscall.SIGKILL}
	inside := []string{"--user", "--map-root-user", "--net", "--mount", "--propagation", "private", "--"}
	try := exec.Command("unshare", append(inside, "true")...)
	try.SysProcAttr, try.Dir = user, "/"
	if out, err := try.CombinedOutput(); err != nil {
		t.Skipf("an ordinary user gets no user namespace here: %v: %s", err, out)
	}
	args := append(inside, filepath.Join(dir, "oci.test"), "-test.run=^"+t.Name()+"$", "-test.v=true", "-test.timeout=10m")
	cmd := exec.CommandContext(t.Context(), "unshare", args...)
	if cmd.SysProcAttr, cmd.Dir = user, "/"; group >= 0 {
		user.UseCgroupFD, user.CgroupFD = true, group
	}
	cmd.Env = append(os.Environ(), userVariable+"=1", "MUSTER_TEST_INIT="+filepath.Join(dir, "muster-init"), "TMPDIR="+filepath.Join(dir, "tmp"), "HOME=/")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if text := string(out); !strings.Contains(text, "--- PASS: "+t.Name()) {
		t.Errorf("nothing was tried:\n%s", text)
	}
	return false
}

func copyProgram(t *testing.T, from, to string) {
	t.Helper()
	r, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	w, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(w, r); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Chmod(0o755), w.Close()); err != nil {
		t.Fatal(err)
	}
}

// noGroups is for a user to whom no cgroup is delegated.
func noGroups() (*cgroup.Groups, []string) { return nil, []string{cgroup.Unlimited + "it is a test"} }

// newUserRuntime makes a runtime as an agent in its user namespace does.
func newUserRuntime(t *testing.T, groups func() (*cgroup.Groups, []string)) *Runtime {
	t.Helper()
	r, err := New(Config{
		InitPath: initPath, UserIDs: 1, UserWhy: "it is a test", Groups: groups,
		StartLimit: time.Duration(runtimetest.Slow()) * initbox.DefaultStartLimit,
		Log:        slog.New(initMinder{slog.DiscardHandler, t}),
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.ready(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	return r
}

// TestConformanceOrdinaryUser: the containers of an ordinary user, without cgroups, do all that others do but for limits.
func TestConformanceOrdinaryUser(t *testing.T) {
	if !asOrdinaryUser(t, -1) {
		return
	}
	suite := userSuite(t, newUserRuntime(t, noGroups))
	suite.NoFreezer, suite.NoMemoryLimit = "no cgroups", "no cgroups"
	runtimetest.Run(t, suite)
}

func userSuite(t *testing.T, first *Runtime) runtimetest.Suite {
	return runtimetest.Suite{
		NoDiskLimit: "no loop devices for an ordinary user",
		New:         func(t *testing.T) contract.Runtime { return likewise(t, first) },
		Image:       busybox(t, 0),
		ShortLines:  fewerLines,
		InitPid: func(t *testing.T, dir string) int {
			all, err := initbox.Members(dir)
			if err != nil || len(all) == 0 || all[0].Role != initbox.RoleInit {
				t.Fatalf("members: %v, %v", all, err)
			}
			return all[0].Pid
		},
	}
}

// TestConformanceDelegated: with a delegated cgroup the containers of an ordinary user have limits as others do.
func TestConformanceDelegated(t *testing.T) {
	group := -1
	if os.Getenv(userVariable) == "" {
		group = delegate(t)
	}
	if !asOrdinaryUser(t, group) {
		return
	}
	dir, err := cgroup.Delegated()
	if err == nil {
		err = cgroup.Vacuum(dir)
	}
	if err != nil {
		t.Fatal(err)
	}
	const parent = "muster/node"
	first := newUserRuntime(t, func() (*cgroup.Groups, []string) { return cgroup.OpenBelow(dir, parent) })
	t.Cleanup(func() {
		if err := cgroup.RemoveBelow(dir, parent); err != nil {
			t.Error(err)
		}
	})
	for _, p := range first.Problems() {
		if strings.Contains(p, "not enforced") {
			t.Error(p)
		}
	}
	suite := userSuite(t, first)
	if !first.groups.Freezes() {
		suite.NoFreezer = "nothing can freeze here"
	}
	runtimetest.Run(t, suite)
}

// delegate makes a cgroup that belongs to the user, as systemd does, and opens it.
func delegate(t *testing.T) int {
	t.Helper()
	const root = "/sys/fs/cgroup"
	if _, err := os.Stat(root + "/cgroup.controllers"); err != nil || os.Geteuid() != 0 {
		t.Skip("needs root, and cgroups of version 2 alone")
	}
	for _, c := range []string{"+cpu", "+memory", "+pids"} {
		if err := os.WriteFile(root+"/cgroup.subtree_control", []byte(c), 0); err != nil {
			t.Skip(err)
		}
	}
	dir, err := os.MkdirTemp(root, "muster-user-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		below, _ := filepath.Glob(filepath.Join(dir, "*", ""))
		for _, d := range append(below, dir) {
			if info, err := os.Stat(d); err == nil && info.IsDir() {
				if err := cgroup.Remove(d); err != nil {
					t.Error(err)
				}
			}
		}
	})
	for _, name := range []string{"", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"} {
		if err := os.Chown(filepath.Join(dir, name), ordinary, ordinary); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return int(f.Fd())
}

// TestInsideOrdinaryUser: what root inside tries has the same end where an ordinary user made the container, and the devices are
// not its own.
func TestInsideOrdinaryUser(t *testing.T) {
	if !asOrdinaryUser(t, -1) {
		return
	}
	r := newUserRuntime(t, noGroups)
	tryInside(t, r)
	script := `for d in null zero full random urandom tty; do chmod 600 /dev/$d && echo $d; chown 0:0 /dev/$d && echo $d; done 2>/dev/null; exit 0`
	if got := runInside(t, r, nil, script); got != "" {
		t.Errorf("root inside changed devices of the host: %q", got)
	}
}

// TestProblemsOfOrdinaryUser: what is weaker is said, and a user that cannot make containers is told why.
func TestProblemsOfOrdinaryUser(t *testing.T) {
	if !asOrdinaryUser(t, -1) {
		return
	}
	all := strings.Join(newUserRuntime(t, noGroups).Problems(), "\n")
	for _, part := range []string{"memory limits are not enforced", "containers have one user, root", "with the rights of the agent's user", "disk is not limited"} {
		if !strings.Contains(all, part) {
			t.Errorf("nothing is said of %q in %s", part, all)
		}
	}
	r, err := New(Config{InitPath: initPath, Refusal: "no user namespaces"})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Check(context.Background()); err == nil || !strings.Contains(err.Error(), "no user namespaces") {
		t.Errorf("refused with %v", err)
	}
}
