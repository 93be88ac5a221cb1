package oci

import (
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
)

// runInside runs a script in a sandbox and returns what it printed.
func runInside(t *testing.T, r *Runtime, change func(*contract.SandboxConfig), script string) string {
	t.Helper()
	dir := t.TempDir()
	if err := makeDirs(dir); err != nil {
		t.Fatal(err)
	}
	c := attempt(dir, "inside-0-1", busybox(t, r.IDBase()), script)
	if change != nil {
		change(&c)
	}
	s, err := r.Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	<-s.Done()
	var text strings.Builder
	for _, stream := range []string{"stdout", "stderr"} {
		buf := make([]byte, 64<<10)
		n, _ := s.Output(stream).ReadAt(buf, 0)
		text.Write(buf[:n])
	}
	if f := s.Result().Failure; f != nil {
		t.Errorf("%v; it said %q", f, text.String())
	}
	if err := r.Remove(t.Context(), dir); err != nil {
		t.Error(err)
	}
	return text.String()
}

// ways are the programs and user namespaces that are tried from the inside.
func ways(t *testing.T, do func(t *testing.T, r *Runtime)) {
	for _, program := range programs(t) {
		for name, base := range map[string]int{"node's ids": 0, "ids of its own": testBase} {
			t.Run(program+"/"+name, func(t *testing.T) {
				r := newRuntime(t, program, testParent(t), base)
				if base > 0 && r.IDBase() == 0 {
					t.Skip("no user namespaces here: ", r.Problems())
				}
				do(t, r)
			})
		}
	}
}

// TestInside: each line is a try of root inside, and what must come of it.
func TestInside(t *testing.T) { ways(t, tryInside) }

// tryInside does what TestInside and that of an ordinary user have in common.
func tryInside(t *testing.T, r *Runtime) {
	const mark = "== "
	cases := []struct{ name, script, want string }{
		{"mount", `mount -t tmpfs x /tmp 2>/dev/null || echo refused`, "refused"},
		{"bind over init", `mount -o bind /bin /dev/.muster 2>/dev/null || echo refused`, "refused"},
		{"unmount a mask", `umount /proc/kcore 2>/dev/null || echo refused`, "refused"},
		{"namespaces", `unshare -U true 2>/dev/null || unshare -m true 2>/dev/null || echo refused`, "refused"},
		{"devices", `mknod /tmp/sda b 8 0 2>/dev/null || echo refused`, "refused"},
		{"raw sockets", `ping -c1 -W1 127.0.0.1 >/dev/null 2>/tmp/says; grep -q "0% packet" /tmp/says && echo open; grep -qi "permi\|denied" /tmp/says && echo refused`, "refused"},
		{"clock", `date -s "$(date '+%F %T')" 2>&1 | grep -o "not permitted"`, "not permitted"},
		{"reboot", `reboot -f 2>/dev/null || echo refused`, "refused"},
		{"host name", `hostname elsewhere 2>/dev/null || echo refused`, "refused"},
		{"kernel settings", `(echo 1 >/proc/sys/kernel/panic) 2>/dev/null || echo refused`, "refused"},
		{"sysrq", `(echo b >/proc/sysrq-trigger) 2>/dev/null || echo refused`, "refused"},
		{"sysfs", `(echo 1 >/sys/kernel/mm/ksm/run) 2>/dev/null || echo refused`, "refused"},
		{"kernel memory", `head -c1 /proc/kcore 2>/dev/null | wc -c`, "0"},
		{"init is not killed", `kill -9 1; kill -STOP 1; kill -TERM 1; echo alive`, "alive"},
		{"init cannot be written", `(echo x >/dev/.muster/init) 2>/dev/null || echo refused`, "refused"},
		{"other processes", `ls -d /proc/[0-9]* | wc -l | grep -qE '^[1-6]$' && echo few`, "few"},
		{"no new privileges", `grep NoNewPrivs /proc/self/status | tr -d '\t'`, "NoNewPrivs:1"},
		{"filter", `grep ^Seccomp: /proc/self/status | tr -d '\t'`, "Seccomp:2"},
		{"interfaces", `ls /sys/class/net | tr '\n' ' '; ifconfig -a | grep -c Link`, "lo 1"},
		{"loopback is up", `ifconfig lo | grep -o UP`, "UP"},
		{"its own name", `hostname; cat /etc/hostname; ping -c1 -w1 nowhere.invalid >/dev/null 2>&1; grep -c inside /etc/hosts`, "a-inside-0-1\na-inside-0-1\n1"},
		{"no controls of cgroups", `ls /sys/fs/cgroup | wc -l`, "0"},
		{"a low port needs no rights", `(nc -l -p 80 127.0.0.1 & sleep 0.2; netstat -lnt | grep -c ':80 '; kill $!) 2>/dev/null`, "1"},
		{"temporary files", `ls -ld /tmp | cut -c1-10; df /dev/shm | tail -1 | tr -s ' ' | cut -d' ' -f2`, "drwxrwxrwt\n65536"},
	}
	var script strings.Builder
	for _, c := range cases {
		script.WriteString("echo '" + mark + c.name + "'; (" + c.script + ")\n")
	}
	script.WriteString("exit 0")
	said := map[string]string{}
	for part := range strings.SplitSeq(runInside(t, r, nil, script.String()), mark) {
		name, text, _ := strings.Cut(part, "\n")
		said[name] = strings.TrimSpace(text)
	}
	for _, c := range cases {
		if c.name == "no controls of cgroups" && r.groups.Unified() {
			continue
		}
		if got := said[c.name]; got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// TestSharedDirectory: root inside and the agent see each other's files as their own, also where root inside is nobody here.
func TestSharedDirectory(t *testing.T) {
	ways(t, func(t *testing.T, r *Runtime) {
		var work string
		out := runInside(t, r, func(c *contract.SandboxConfig) {
			work = c.Container.Shared
			if err := os.WriteFile(filepath.Join(work, "in"), []byte("input"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, `cat in; stat -c ' %u %g' in; echo output >out; mkdir sub; echo x >sub/y; ln -s /etc/passwd link`)
		if out != "input 0 0\n" {
			t.Errorf("inside: %q", out)
		}
		b, err := os.ReadFile(filepath.Join(work, "out"))
		if err != nil || string(b) != "output\n" {
			t.Errorf("output %q, %v", b, err)
		}
		for _, name := range []string{"out", "sub", "sub/y", "link"} {
			if uid := owner(t, filepath.Join(work, name)); uid != os.Geteuid() {
				t.Errorf("%s belongs to %d", name, uid)
			}
		}
	})
}

// TestSharedDirectoryOfAUser: a command that is not root reads its inputs, whatever their modes, and leaves outputs, all of
// which the agent can read and delete as its own.
func TestSharedDirectoryOfAUser(t *testing.T) {
	ways(t, func(t *testing.T, r *Runtime) {
		for _, user := range []string{"1000", "guest:10", "0:10", "12345:54321"} {
			var work string
			out := runInside(t, r, func(c *contract.SandboxConfig) {
				work, c.Container.User = c.Container.Shared, user
				for path, mode := range map[string]os.FileMode{"in": 0o600, "deep/down/tool": 0o500, "deep/plain": 0o644} {
					path = filepath.Join(work, path)
					if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
						t.Fatal(err)
					}
					if err := os.WriteFile(path, []byte("#!/bin/sh\necho input\n"), mode); err != nil {
						t.Fatal(err)
					}
				}
				// What is elsewhere is not given, whatever leads there.
				if err := os.Symlink("/etc", filepath.Join(work, "deep", "etc")); err != nil {
					t.Fatal(err)
				}
			}, `id -u; tail -1 in; deep/down/tool; stat -c %u deep/etc/ ; echo output >out && echo x >>in && mkdir sub && echo y >sub/y && rm deep/plain && echo fine`)
			uid := strings.Split(user, ":")[0]
			if uid == "guest" {
				uid = "1000"
			}
			if want := uid + "\necho input\ninput\n0\nfine\n"; out != want {
				t.Errorf("user %s: %q, want %q", user, out, want)
			}
			for _, name := range []string{"out", "sub/y", "in"} {
				if b, err := os.ReadFile(filepath.Join(work, name)); err != nil || len(b) == 0 {
					t.Errorf("user %s: %q, %v", user, b, err)
				}
			}
			if err := os.RemoveAll(work); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestAnotherDoor: a program that makes its system calls in the way of 32 bits ends at the first, and is told why.
func TestAnotherDoor(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("only processors of this kind have that door")
	}
	path := filepath.Join(t.TempDir(), "old")
	if err := os.WriteFile(path, tiny32(), 0o755); err != nil {
		t.Fatal(err)
	}
	err := exec.Command(path).Run()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 42 {
		t.Skip("this kernel does not run programs of 32 bits: ", err)
	}
	ways(t, func(t *testing.T, r *Runtime) {
		dir := t.TempDir()
		if err := makeDirs(dir); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "work", "old"), tiny32(), 0o755); err != nil {
			t.Fatal(err)
		}
		s, err := r.Start(t.Context(), attempt(dir, "door-0-1", busybox(t, r.IDBase()), "exec ./old"))
		if err != nil {
			t.Fatal(err)
		}
		<-s.Done()
		if got := s.Result(); got.Signal != "SIGSYS" || got.Failure.Class != muster.FailureUser || !strings.Contains(got.Failure.Message, "32 bits") {
			t.Errorf("%+v, %v", got, got.Failure)
		}
		if err := r.Remove(t.Context(), dir); err != nil {
			t.Error(err)
		}
	})
}

// tiny32 is a program of 32 bits that exits with 42.
func tiny32() []byte {
	const at, head = 0x08048000, 52 + 32
	code := []byte{0xb8, 1, 0, 0, 0, 0xbb, 42, 0, 0, 0, 0xcd, 0x80} // eax = exit, ebx = 42, int 0x80
	b := append([]byte("\x7fELF\x01\x01\x01"), make([]byte, 9)...)
	le := binary.LittleEndian
	b = le.AppendUint16(le.AppendUint16(b, 2), 3) // a program for the 80386
	for _, v := range []uint32{1, at + head, 52, 0, 0} {
		b = le.AppendUint32(b, v)
	}
	for _, v := range []uint16{52, 32, 1, 0, 0, 0} {
		b = le.AppendUint16(b, v)
	}
	size := uint32(head + len(code))
	for _, v := range []uint32{1, 0, at, at, size, size, 5, 0x1000} {
		b = le.AppendUint32(b, v)
	}
	return append(b, code...)
}

// TestUser: the command runs as whom the image's own files say, without rights that root has.
func TestUser(t *testing.T) {
	ways(t, func(t *testing.T, r *Runtime) {
		for user, want := range map[string]string{
			"":           "0 0 root 00000000800404fb",
			"guest":      "1000 1000 10 guest 0000000000000000",
			"1000":       "1000 1000 10 guest 0000000000000000",
			"1000:10":    "1000 10 guest 0000000000000000",
			"guest:root": "1000 0 guest 0000000000000000",
			"12345":      "12345 0 12345 0000000000000000",
		} {
			out := runInside(t, r, func(c *contract.SandboxConfig) { c.Container.User, c.Work = user, "/" },
				`echo $(id -u) $(id -g) $(id -G | cut -s -d' ' -f2-) $(id -un 2>/dev/null) $(grep CapEff /proc/self/status | cut -f2)`)
			if got := strings.Join(strings.Fields(out), " "); got != want {
				t.Errorf("user %q: %q, want %q", user, got, want)
			}
		}
	})
}

// TestVolumes: a volume begins empty, belongs to whom the image says, and can be written.
func TestVolumes(t *testing.T) {
	ways(t, func(t *testing.T, r *Runtime) {
		out := runInside(t, r, func(c *contract.SandboxConfig) { c.Container.Volumes = []string{"/srv/data", "/var/lib/new/one"} },
			`ls -A /srv/data /var/lib/new/one; stat -c %u /srv/data; echo a >/srv/data/a && cat /srv/data/a; echo b >/var/lib/new/one/b && cat /var/lib/new/one/b`)
		if want := "/srv/data:\n\n/var/lib/new/one:\n0\na\nb\n"; out != want {
			t.Errorf("%q, want %q", out, want)
		}
	})
}

// TestRefused: what cannot be started is told with a class and a sentence, and leaves nothing.
func TestRefused(t *testing.T) {
	r := newRuntime(t, "", testParent(t), 0)
	for name, c := range map[string]struct {
		change func(*contract.SandboxConfig)
		class  muster.FailureClass
		says   string
	}{
		"no image":        {func(c *contract.SandboxConfig) { c.Container = nil }, muster.FailureUser, "image"},
		"volume in proc":  {func(c *contract.SandboxConfig) { c.Container.Volumes = []string{"/proc/x"} }, muster.FailureUser, "/proc/x"},
		"layer gone":      {func(c *contract.SandboxConfig) { c.Container.Image.Layers = []string{"no-such-layer"} }, muster.FailureNode, "overlay"},
		"layer elsewhere": {func(c *contract.SandboxConfig) { c.Container.Image.Layers = []string{"../../etc"} }, muster.FailureNode, "../../etc"},
		"network gone":    {func(c *contract.SandboxConfig) { c.Container.Network.Namespace = "/no/such/namespace" }, muster.FailureNode, "/no/such/namespace"},
		"shared gone":     {func(c *contract.SandboxConfig) { c.Container.Shared = "/no/such/directory" }, muster.FailureNode, "/no/such/directory"},
		"command":         {func(c *contract.SandboxConfig) { c.Command = []string{"no-such-command"} }, muster.FailureUser, "no-such-command"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := makeDirs(dir); err != nil {
				t.Fatal(err)
			}
			config := attempt(dir, "refused-0-1", busybox(t, 0), "true")
			c.change(&config)
			s, err := r.Start(t.Context(), config)
			if err == nil {
				_ = s.Close()
				_ = r.Remove(t.Context(), dir)
				t.Fatal("it did start")
			}
			f, ok := err.(*muster.Failure)
			if !ok || f.Class != c.class || !strings.Contains(f.Message, c.says) {
				t.Errorf("%v, want class %s and %q", err, c.class, c.says)
			}
			t.Log(err)
			if _, err := r.Attach(t.Context(), dir); err != contract.ErrNoSandbox {
				t.Errorf("attach: %v", err)
			}
			for _, left := range []string{boxName, "out", "sandbox", "init.sock"} {
				if _, err := os.Lstat(filepath.Join(dir, left)); err == nil {
					t.Errorf("%s is left", left)
				}
			}
		})
	}
}

// TestMainThread: a stage is never made on the first thread of the process, which cannot end and would keep it.
func TestMainThread(t *testing.T) {
	r := newRuntime(t, "", testParent(t), 0)
	before, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		runInside(t, r, nil, "true")
	}
	after, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || string(after) != string(before) {
		t.Errorf("%v, the mounts of this process are now\n%s", err, after)
	}
}
