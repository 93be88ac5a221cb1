package imagetest

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

const architecture = runtime.GOARCH

// busyboxPath is where Debian's busybox-static puts it.
const busyboxPath = "/bin/busybox"

// Path is where programs are in these images.
const Path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Users of the busybox image, beside root: a plain one, one with supplementary groups, and one whose home does not exist.
const (
	passwd = `root:x:0:0:root:/root:/bin/sh
daemon:x:1:1:daemon:/usr/sbin:/bin/false
app:x:1000:1000:an application:/home/app:/bin/sh
worker:x:1001:1001:in more groups:/home/worker:/bin/sh
homeless:x:1002:1002:no home:/nonexistent:/bin/sh
nobody:x:65534:65534:nobody:/nonexistent:/bin/false
`
	group = `root:x:0:
daemon:x:1:
audio:x:29:worker
staff:x:50:worker,app
app:x:1000:
worker:x:1001:
homeless:x:1002:
nogroup:x:65534:
`
)

// Busybox is a small whole system: a shell, the usual programs, a few users. The test is
// skipped where busybox-static is not installed.
func Busybox(t testing.TB) v1.Image {
	t.Helper()
	return New(t, v1.Config{Env: []string{Path}, Cmd: []string{"sh"}}, Layer(t, BusyboxEntries(t)...))
}

// BusyboxEntries is what Busybox holds.
func BusyboxEntries(t testing.TB) []Entry {
	t.Helper()
	program, err := os.ReadFile(busyboxPath)
	if err != nil {
		t.Skipf("busybox-static is not installed: %v", err)
	}
	if list, err := exec.Command(busyboxPath, "--list-full").Output(); err != nil {
		t.Skipf("%s cannot say what it holds: %v", busyboxPath, err)
	} else if f, err := os.Open(busyboxPath); err == nil {
		defer func() { _ = f.Close() }()
		if isDynamic(f) {
			t.Skipf("%s needs libraries: busybox-static is wanted", busyboxPath)
		}
		return busyboxTree(program, strings.Fields(string(list)))
	}
	t.Skipf("%s cannot be read", busyboxPath)
	return nil
}

func busyboxTree(program []byte, applets []string) []Entry {
	entries := []Entry{
		Dir("bin", 0o755), Dir("dev", 0o755), Dir("etc", 0o755), Dir("home", 0o755),
		Dir("home/app", 0o755).Owned(1000, 1000), Dir("home/worker", 0o750).Owned(1001, 1001),
		Dir("proc", 0o555), Dir("root", 0o700), Dir("sbin", 0o755), Dir("sys", 0o555), Dir("tmp", 0o1777),
		Dir("usr", 0o755), Dir("usr/bin", 0o755), Dir("usr/sbin", 0o755), Dir("usr/local", 0o755), Dir("usr/local/bin", 0o755),
		Dir("var", 0o755), Dir("var/tmp", 0o1777),
		File("etc/passwd", passwd, 0o644), File("etc/group", group, 0o644),
		File("etc/os-release", "ID=busybox\nNAME=busybox\n", 0o644),
		{Body: program, Header: File("bin/busybox", "", 0o755).Header},
	}
	for _, name := range applets {
		if name == "bin/busybox" || name == "linuxrc" {
			continue
		}
		// Hard links, as in the image that everybody knows: a program is found at each of its names.
		entries = append(entries, Link(name, "bin/busybox"))
	}
	return entries
}

// Variant is an image that differs from Busybox in one thing, and what is to be seen of that.
type Variant struct {
	// Name is good as a tag.
	Name  string
	Image v1.Image
	// Command is what the user gives; nil: the image's own is run.
	Command []string
	// Stdout is what it prints then, when it ends with 0.
	Stdout string
}

// Variants are images whose configuration and layers must be honoured.
func Variants(t testing.TB) []Variant {
	t.Helper()
	base := Busybox(t)
	config := func(change func(*v1.Config)) v1.Image { return Configured(t, base, change) }
	var many []v1.Layer
	for i := range 60 {
		many = append(many, Layer(t, File("etc/layer", strings.Repeat("x", i+1), 0o644), File("layers/"+strings.Repeat("x", i+1), "", 0o644)))
	}
	hidden := With(t, base,
		Layer(t, Dir("data", 0o755), File("data/gone", "1", 0o644), File("data/stays", "2", 0o644), Dir("data/dir", 0o755), File("data/dir/old", "3", 0o644)),
		Layer(t, Whiteout("data/gone"), Opaque("data/dir"), File("data/dir/new", "4", 0o644)))
	return []Variant{
		{Name: "cmd", Stdout: "from the image\n", Image: config(func(c *v1.Config) { c.Cmd = []string{"echo", "from the image"} })},
		{Name: "entrypoint", Stdout: "entry a b\n", Command: []string{"a", "b"}, Image: config(func(c *v1.Config) {
			c.Entrypoint, c.Cmd = []string{"echo", "entry"}, []string{"not", "seen"}
		})},
		{Name: "env", Stdout: "of the image\n", Command: []string{"sh", "-c", "echo $WORD"}, Image: config(func(c *v1.Config) { c.Env = append(c.Env, "WORD=of the image") })},
		{Name: "user-name", Stdout: "1000 1000 50 1000 /home/app\n", Command: idCommand(), Image: config(func(c *v1.Config) { c.User = "app" })},
		{Name: "user-groups", Stdout: "1001 1001 29 50 1001 /home/worker\n", Command: idCommand(), Image: config(func(c *v1.Config) { c.User = "worker" })},
		{Name: "user-number", Stdout: "4711 0 0 /\n", Command: idCommand(), Image: config(func(c *v1.Config) { c.User = "4711" })},
		{Name: "user-and-group", Stdout: "1000 50 50 /home/app\n", Command: idCommand(), Image: config(func(c *v1.Config) { c.User = "1000:staff" })},
		{Name: "workdir", Stdout: "/srv/new\n", Command: []string{"pwd"}, Image: config(func(c *v1.Config) { c.WorkingDir = "/srv/new" })},
		{Name: "volume", Stdout: "empty\nwritten\n", Image: config(func(c *v1.Config) { c.Volumes = map[string]struct{}{"/var/data": {}} }),
			Command: []string{"sh", "-c", `[ -z "$(ls -A /var/data)" ] && echo empty; echo written >/var/data/f; cat /var/data/f`}},
		{Name: "layers", Stdout: "60\n60\n", Image: With(t, base, many...), Command: []string{"sh", "-c", "ls /layers | wc -l; wc -c </etc/layer"}},
		{Name: "whiteouts", Stdout: "dir stays new\n", Image: hidden, Command: []string{"sh", "-c", "echo $(ls /data) $(ls /data/dir)"}},
		{Name: "stop-signal", Image: config(func(c *v1.Config) {
			c.StopSignal = "SIGUSR1"
			c.Cmd = []string{"sh", "-c", `trap 'echo asked; exit 0' USR1; echo ready; while :; do sleep 0.05; done`}
		}), Stdout: "ready\nasked\n"},
	}
}

// idCommand prints uid, gid, all groups in order of number, and the home.
func idCommand() []string {
	return []string{"sh", "-c", `echo $(id -u) $(id -g) $(id -G | tr ' ' '\n' | sort -n | uniq) $HOME`}
}
