package faults

import (
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster/internal/agent/journal"
	"github.com/musterhq/muster/internal/imagetest"
	"github.com/musterhq/muster/internal/locate"
)

// ordinary is a user whom no machine has: there are no ids for it in /etc/subuid.
const ordinary = 912_346

// newUserHost is a host whose server runs as an ordinary user, with an image of busybox. These
// programs are not in its PATH.
func newUserHost(t *testing.T, without ...string) (h *host, image string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("becoming an ordinary user needs root")
	}
	busybox := imagetest.Busybox(t)
	h = newHost(t)
	h.user = ordinary
	h.search = h.path("bin")
	if err := os.Mkdir(h.search, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"sh", "true", "sleep", "cat", "id", "rm", "unshare", "nsenter", "crun", "slirp4netns"} {
		path, err := exec.LookPath(name)
		if strings.Contains(strings.Join(without, " "), name) || err != nil && name == "slirp4netns" {
			continue
		}
		if err != nil {
			t.Skip(err)
		}
		if err := os.Symlink(path, filepath.Join(h.search, name)); err != nil {
			t.Fatal(err)
		}
	}
	try := exec.Command("unshare", "--user", "--map-root-user", "--mount", "true")
	h.asUser(try)
	if out, err := try.CombinedOutput(); err != nil {
		t.Skipf("an ordinary user gets no user namespace here: %v: %s", err, out)
	}
	image = h.archive("busybox", busybox)
	if err := os.Chmod(h.path("busybox.tar"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(h.dir, h.user, h.user); err != nil {
		t.Fatal(err)
	}
	return h, image
}

// devInstances are the directories of the agents of muster dev.
func (h *host) devInstances() string { return filepath.Join(h.data, "local") }

// startDev starts muster dev as the user.
func (h *host) startDev() {
	h.t.Helper()
	h.start("dev", "--data-dir", h.data, "--listen", "127.0.0.1:0", "--log-level", "info")
}

// outerOf is the process that the agent of an instance has outside of its user namespace.
func (h *host) outerOf(agent journal.Record) int {
	h.t.Helper()
	text := readFile(h.t, "/proc/"+strconv.Itoa(agent.Pid)+"/stat")
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	return must(strconv.Atoi(fields[1]))(h.t)
}

// An ordinary user runs containers: root inside is the user outside, processes stay what they were,
// what is weaker is said at the start, and the network that cannot be had is refused at once.
func TestContainersOfAnOrdinaryUser(t *testing.T) {
	t.Parallel()
	h, image := newUserHost(t, "slirp4netns")
	h.startDev()
	for _, said := range []string{"limits of memory, CPU and processes are not enforced", "containers have one user, root",
		"network bridge of containers is off: for an ordinary user it needs slirp4netns", "containers run with your rights"} {
		h.eventually("the server says: "+said, func() bool { return h.logged(said) })
	}
	h.cli("run", "--image", image, "--network", "none", "--", "id", "-u").says(0)
	h.prints("uid=0(root) gid=0(root)\n", "run", "--image", image, "--network", "none", "--", "id")
	h.prints(strconv.Itoa(ordinary)+"\n", "run", "--", "id", "-u")
	// Users that the container cannot have are named, with what to do.
	h.cli("run", "--image", image, "--network", "none", "--user", "1000", "--", "id").says(1, "user 1000 is not mapped", "use --user 0", "/etc/subuid")
	h.cli("run", "--image", image, "--network", "host", "--user", "0:5", "--", "id").says(1, `group 5 (of user "0:5") is not mapped`)
	h.cli("run", "--image", image, "--", "true").says(2, "body.spec.network", "needs slirp4netns", "network none")

	run, a := h.container("files", image, []string{"--network", "none"}, "sh", "-c", "echo mine > /mine; while [ ! -e /gate ]; do sleep 0.05; done")
	h.eventually("the file is there", func() bool { _, err := h.tryInside(a, "test", "-s", "/mine"); return err == nil })
	found := ""
	if err := filepath.WalkDir(h.devInstances(), func(path string, _ fs.DirEntry, err error) error {
		if err == nil && filepath.Base(path) == "mine" {
			found = path
		}
		return nil
	}); err != nil || found == "" {
		t.Fatalf("the file of the container is nowhere: %v", err)
	}
	if st := must(os.Stat(found))(t).Sys().(*syscall.Stat_t); st.Uid != ordinary || st.Gid != ordinary {
		t.Errorf("%s belongs to %d:%d", found, st.Uid, st.Gid)
	}
	// What the host's root owns is nobody's inside.
	if out, err := h.tryInside(a, "chmod", "600", "/dev/null"); err == nil {
		t.Errorf("root inside changed a device of the host: %s", out)
	}
	show := h.cli("node", "show", a.Node)
	show.says(0)
	for _, said := range []string{"An ordinary user cannot mount file systems from files", "Network bridge does not work here"} {
		if !strings.Contains(show.stdout.String(), said) {
			t.Errorf("muster node show does not say %q:\n%s", said, show.stdout)
		}
	}
	h.open(a, "/gate")
	if run.wait(); run.cmd.ProcessState.ExitCode() != 0 {
		t.Errorf("exit code %d: %s", run.cmd.ProcessState.ExitCode(), run.stderr)
	}
}

// The containers and processes of an ordinary user outlive their agent, and the next one has all of
// them. When the process that keeps their namespaces is killed, they are lost and start elsewhere.
func TestAgentOfAnOrdinaryUserIsKilled(t *testing.T) {
	t.Parallel()
	h, image := newUserHost(t)
	h.startDev()
	run, a := h.container("lasting", image, []string{"--network", "none"}, "sh", "-c", "while [ ! -e /gate ]; do sleep 0.05; done; exit 7")
	dirs := must(filepath.Glob(filepath.Join(h.devInstances(), "i-*", "sandboxes", a.ID)))(t)
	if len(dirs) != 1 {
		t.Fatalf("sandboxes %q", dirs)
	}
	dir := filepath.Dir(filepath.Dir(dirs[0]))
	for _, outer := range []bool{false, true} {
		agent, before := h.theAgent(dir), h.members(dir)
		pid := agent.Pid
		if outer {
			pid = h.outerOf(agent)
		}
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		h.anotherAgent(dir, agent)
		if got := h.execAgain(a, "id", "-u"); got != "0\n" {
			t.Errorf("in the container: %q", got)
		}
		if after := h.members(dir); len(after) == 0 || after[0] != before[0] {
			t.Errorf("members %v, before %v", after, before)
		}
	}
	h.open(a, "/gate")
	if run.wait(); run.cmd.ProcessState.ExitCode() != 7 {
		t.Errorf("exit code %d, want 7: %s", run.cmd.ProcessState.ExitCode(), run.stderr)
	}

	run, a = h.container("lost", image, []string{"--network", "none"}, "sh", "-c", "while [ ! -e /gate ]; do sleep 0.05; done; exit 8")
	dirs = must(filepath.Glob(filepath.Join(h.devInstances(), "i-*", "sandboxes", a.ID)))(t)
	holder := h.holderOf(filepath.Dir(filepath.Dir(dirs[0])))
	if err := unix.Kill(holder, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	h.eventually("it runs again", func() bool {
		all := h.allocs("lost")
		return len(all) == 2 && h.job("lost").Counts.Running == 1
	})
	all := h.allocs("lost")
	for _, now := range all {
		if now.ID != a.ID {
			h.eventually("the second attempt can be entered", func() bool { _, err := h.tryInside(now, "touch", "/gate"); return err == nil })
		}
	}
	if run.wait(); run.cmd.ProcessState.ExitCode() != 8 {
		t.Errorf("exit code %d, want 8: %s", run.cmd.ProcessState.ExitCode(), run.stderr)
	}
}

// holderOf is the process that keeps the namespaces of the agent of an instance.
func (h *host) holderOf(dir string) (pid int) {
	h.t.Helper()
	text := readFile(h.t, filepath.Join(dir, "userns.json"))
	_, rest, _ := strings.Cut(text, `"pid":`)
	number, _, _ := strings.Cut(rest, ",")
	return must(strconv.Atoi(number))(h.t)
}

// Containers of an ordinary user have a network of their own, by slirp4netns: they reach each other
// by declared ports, and not the host.
func TestNetworkOfAnOrdinaryUser(t *testing.T) {
	t.Parallel()
	h, image := newUserHost(t)
	if !exists(filepath.Join(h.search, "slirp4netns")) {
		t.Skip("slirp4netns is not installed")
	}
	try := exec.Command("sh", "-c", "exec 3<>/dev/net/tun")
	h.asUser(try)
	if out, err := try.CombinedOutput(); err != nil {
		t.Skipf("an ordinary user cannot open /dev/net/tun here: %s", out)
	}
	h.start("dev", "--data-dir", h.data, "--listen", "0.0.0.0:0", "--log-level", "info")
	run, a := h.container("listens", image, []string{"--port", "8000"}, "nc", "-ll", "-p", "8000", "-e", "echo", "hello")
	address := strings.TrimSpace(h.inside(a, "sh", "-c", "ip -4 -o addr show eth0 | awk '{print $4}' | cut -d/ -f1"))
	if address == "" {
		t.Fatal("it has no address")
	}
	h.prints("hello\n", "run", "--image", image, "--cpu", "0.5", "--memory", "64MiB", "--", "sh", "-c", "until nc -w 2 "+address+" 8000 </dev/null; do sleep 0.05; done")
	for _, never := range hostAddresses(t) {
		if out, err := h.tryInside(a, "nc", "-w", "2", never, h.port()); err == nil {
			t.Errorf("the server is reached at the host's address %s: %q", never, out)
		}
	}
	h.cli("job", "stop", "listens").says(0)
	run.wait()
}

// port is that of this host's server.
func (h *host) port() string {
	h.t.Helper()
	s := must(locate.ReadServer(h.data))(h.t)
	return s.Address[strings.LastIndexByte(s.Address, ':')+1:]
}

// hostAddresses are those of this machine, beside the loopback.
func hostAddresses(t *testing.T) (all []string) {
	for _, a := range must(net.InterfaceAddrs())(t) {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() && !p.Addr().IsLoopback() {
			all = append(all, p.Addr().String())
		}
	}
	return append(all, "10.0.2.2") // the host, to slirp4netns
}
