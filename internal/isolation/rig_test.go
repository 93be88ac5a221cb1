package isolation

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/cgroup"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/oci"
	"github.com/musterhq/muster/internal/agent/runtimetest"
	"github.com/musterhq/muster/internal/imagetest"
	"github.com/musterhq/muster/internal/programtest"
	"github.com/musterhq/muster/internal/testwait"
)

// patience bounds every wait for something that should happen soon.
func patience() time.Duration { return time.Duration(runtimetest.Slow()) * 3 * time.Minute }

// firstID is the first uid of sandboxes with a user namespace.
const firstID = 1_000_000

// What TestMain builds, unless it is given: muster-init and the probe.
var (
	initPath  = os.Getenv("MUSTER_TEST_INIT")
	probePath = os.Getenv("MUSTER_TEST_PROBE")
)

// all kinds of runtime are attempted, and not only the one that nodes have if nothing is said:
// `make isolation` and the machine do it, a run of all tests has not the time.
var all = flag.Bool("isolation.all", os.Getenv("MUSTER_ISOLATION_ALL") != "", "attempt crun and runc, with and without a user namespace")

// apart is set once the tests run in a network and mount namespace of their own: what they
// do to addresses and rules is never seen by the machine.
const apart = "MUSTER_ISOLATION_TEST_APART"

func TestMain(m *testing.M) {
	if os.Geteuid() == 0 && os.Getenv(apart) == "" {
		cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
		cmd.Env = append(os.Environ(), apart+"=1")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS}
		err := cmd.Run()
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			os.Exit(exit.ExitCode())
		}
		if err == nil {
			return
		}
		fmt.Fprintln(os.Stderr, "isolation: no namespaces of our own:", err)
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "muster-isolation-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if initPath == "" {
		if initPath, err = programtest.Init(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	if probePath == "" {
		if probePath, err = programtest.Build(dir, "internal/isolation/probe"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	if os.Getenv(apart) != "" {
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return m.Run()
}

// node is a node with one runtime, and what is on it that no sandbox may see.
type node struct {
	*testing.T
	runtime *oci.Runtime
	// hasty soon gives up a start. Only an evilNode has it.
	hasty   *oci.Runtime
	program string
	base    int
	image   *contract.Image
	root    string
	uid     string
	next    *atomic.Int64
	// secret is a file of the node that holds token, handle the kernel's own name for it, stranger a process with token in its arguments.
	secret, token, handle string
	stranger              int
}

// everywhere runs a test on each kind of runtime that this machine has.
func everywhere(t *testing.T, test func(*node)) {
	if os.Geteuid() != 0 {
		t.Skip("containers need root")
	}
	if os.Getenv(apart) == "" {
		t.Skip("no namespaces of our own can be had here")
	}
	for _, program := range []string{"crun", "runc"} {
		for _, base := range []int{0, firstID} {
			if !*all && (program != "crun" || base == 0) {
				continue
			}
			name := program
			if base > 0 {
				name += " with a user namespace"
			}
			t.Run(name, func(t *testing.T) {
				n := newNode(t, program, base, initPath)
				test(n)
			})
		}
	}
}

// newNode makes one, or skips the test where its parts are not to be had.
func newNode(t *testing.T, program string, base int, init string) *node {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Skipf("%s is not installed", program)
	}
	n := &node{T: t, program: program, base: base, root: t.TempDir(), next: &atomic.Int64{}}
	n.uid, n.token = "t"+strconv.FormatUint(rand.Uint64(), 36), "token-"+strconv.FormatUint(rand.Uint64(), 36)
	parent := "muster-test/isolation-" + n.uid
	t.Cleanup(func() {
		if err := cgroup.RemoveParent(parent); err != nil {
			t.Error(err)
		}
	})
	r, err := oci.New(oci.Config{InitPath: init, CgroupParent: parent, Program: program, IDBase: base, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if init == initPath {
		if err := r.Check(t.Context()); err != nil {
			t.Skipf("no containers by %s here: %v", program, err)
		}
		if base > 0 && r.IDBase() == 0 {
			t.Skipf("no user namespaces here: %q", r.Problems())
		}
	}
	n.runtime = r
	n.makeImage()
	n.makeStrangers()
	return n
}

// makeImage is busybox with the probe, and what an evil image would bring.
func (n *node) makeImage() {
	n.Helper()
	program, err := os.ReadFile(probePath)
	if err != nil {
		n.Fatal(err)
	}
	major, minor := n.disk()
	file := imagetest.File("probe", string(program), 0o755)
	setuid := imagetest.File("evil/setuid", string(program), 0o6755)
	image := imagetest.With(n, imagetest.Busybox(n), imagetest.Layer(n, file, imagetest.Dir("evil", 0o755), setuid,
		imagetest.Dir("vol", 0o777), imagetest.Dir("shared", 0o777),
		imagetest.Device("evil/disk", 'b', int64(major), int64(minor)), imagetest.Device("evil/memory", 'c', 1, 1), imagetest.Device("evil/null", 'c', 1, 3)))
	dir := filepath.Join(n.root, "image")
	if err := os.Mkdir(dir, 0o755); err != nil {
		n.Fatal(err)
	}
	root := imagetest.Unpack(n, dir, image, n.base)
	n.image = &contract.Image{Ref: "evil", Root: root.Dir, Layers: root.Layers}
}

// disk is the device that the tests' files are on.
func (n *node) disk() (major, minor uint32) {
	var st unix.Stat_t
	if err := unix.Stat(n.root, &st); err != nil {
		n.Fatal(err)
	}
	return unix.Major(st.Dev), unix.Minor(st.Dev)
}

func (n *node) makeStrangers() {
	n.Helper()
	n.secret = filepath.Join(n.root, "secret")
	if err := os.WriteFile(n.secret, []byte(n.token), 0o644); err != nil {
		n.Fatal(err)
	}
	if h, _, err := unix.NameToHandleAt(unix.AT_FDCWD, n.secret, 0); err == nil {
		n.handle = fmt.Sprintf("%d:%s", h.Type(), hex.EncodeToString(h.Bytes()))
	}
	cmd := exec.Command(probePath, "sleep", n.token)
	if err := cmd.Start(); err != nil {
		n.Fatal(err)
	}
	n.stranger = cmd.Process.Pid
	n.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
}

// config is one of a sandbox without network.
func (n *node) config(command ...string) contract.SandboxConfig {
	n.Helper()
	id := muster.NewAllocID(muster.JobUID(n.uid), int(n.next.Add(1)), 1)
	c := contract.SandboxConfig{
		ID: id, Dir: filepath.Join(n.root, string(id)), Work: "/shared", Command: command,
		Env: []string{imagetest.Path, "MUSTER_ALLOC=" + string(id)}, KillGrace: 5 * time.Second, OutputLimit: 16 << 20,
		Resources: muster.Resources{CPU: 500, Memory: 256 * muster.MiB, Disk: 256 * muster.MiB},
		Container: &contract.Container{Image: n.image, Network: &contract.Network{}, SharedAt: "/shared", Volumes: []string{"/vol"}},
	}
	c.Container.Shared = filepath.Join(c.Dir, "work")
	if err := os.MkdirAll(c.Container.Shared, 0o700); err != nil {
		n.Fatal(err)
	}
	return c
}

// facts is what the probe is told about the node, by the environment.
func (n *node) facts() []string {
	major, minor := n.disk()
	return []string{
		"PROBE_TOKEN=" + n.token, "PROBE_SECRET=" + n.secret, "PROBE_HANDLE=" + n.handle, fmt.Sprintf("PROBE_DISK=%d:%d", major, minor),
		fmt.Sprint("PROBE_PID=", n.stranger), fmt.Sprint("PROBE_BASE=", n.base),
	}
}

func (n *node) start(c contract.SandboxConfig) contract.Sandbox {
	n.Helper()
	s, err := n.runtime.Start(n.Context(), c)
	if err != nil {
		n.Fatalf("start %q: %v", c.Command, err)
	}
	n.Cleanup(func() {
		_ = s.Close()
		if err := n.runtime.Remove(context.Background(), c.Dir); err != nil {
			n.Errorf("remove: %v", err)
		}
	})
	return s
}

func (n *node) wait(s contract.Sandbox) contract.Result {
	n.Helper()
	select {
	case <-s.Done():
	case <-time.After(patience()):
		said := output(n, s, "stdout")
		n.Fatalf("the sandbox did not end within %s; stdout: %s", patience(), said[:min(len(said), 2000)])
	}
	return s.Result()
}

// sh runs a script to its end, and returns what it printed.
func (n *node) sh(c contract.SandboxConfig, script string) (string, contract.Result) {
	n.Helper()
	c.Command = []string{"sh", "-c", script}
	s := n.start(c)
	result := n.wait(s)
	return output(n, s, "stdout"), result
}

// bystander is a sandbox that must not notice anything: it counts, and the returned function ends it and checks.
func (n *node) bystander() (unharmed func()) {
	n.Helper()
	c := n.config("sh", "-c", "echo here; while [ ! -e /shared/enough ]; do sleep 0.05; done; echo still here; exit 7")
	s := n.start(c)
	n.until("the bystander runs", func() bool { return strings.Contains(output(n, s, "stdout"), "here\n") })
	return func() {
		n.Helper()
		if err := os.WriteFile(filepath.Join(c.Container.Shared, "enough"), nil, 0o644); err != nil {
			n.Fatal(err)
		}
		result := n.wait(s)
		if out := output(n, s, "stdout"); result.ExitCode != 7 || out != "here\nstill here\n" {
			n.Errorf("another sandbox was harmed: %+v, %q", result, out)
		}
	}
}

func (n *node) until(what string, ok func() bool) {
	n.Helper()
	testwait.Within(n, patience(), what, ok)
}

// output is what is kept of a stream.
func output(t testing.TB, s contract.Sandbox, stream string) string {
	t.Helper()
	log := s.Output(stream)
	start, _, err := log.Bounds()
	if err != nil {
		t.Fatalf("bounds of %s: %v", stream, err)
	}
	var all bytes.Buffer
	buf := make([]byte, 1<<20)
	for at := start; ; {
		n, err := log.ReadAt(buf, at)
		all.Write(buf[:n])
		if at += int64(n); err == io.EOF || n == 0 {
			return all.String()
		}
	}
}

// failed says whether a result has this class and reason.
func failed(r contract.Result, class muster.FailureClass, reason muster.Reason) bool {
	return r.Failure != nil && r.Failure.Class == class && r.Failure.Reason == reason
}
