package sandbox

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/musterhq/muster/internal/sandbox/system"
	initwire "github.com/musterhq/muster/internal/wire/init"
	"golang.org/x/sys/unix"
)

// confined is a sandbox of an ordinary user, who alone has this number: root may have as many threads as it wants.
func confined(t *testing.T) *box {
	const uid = 61234
	return startBox(t, &initwire.Start{
		Work: "/", Command: []string{"sleep", "100000"}, Env: []string{"PATH=/usr/bin:/bin"}, OutputLimit: 1 << 20,
		KillGrace: time.Second, OpenFiles: 65536,
	}, func(dir string) *exec.Cmd {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = []string{asInit + "=1", "GOMAXPROCS=1", "GORACE=" + os.Getenv("GORACE")}
		if os.Getuid() == 0 {
			must(t, os.Chown(dir, uid, uid))
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		}
		return cmd
	})
}

// noMore lets init start no thread and no process from here on, as in a sandbox that is full of them.
func (b *box) noMore() {
	b.t.Helper()
	// By a process of the same user: it needs no capability, which root may lack.
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{asLimiter + "=" + strconv.Itoa(b.cmd.Process.Pid)}
	cmd.SysProcAttr = b.cmd.SysProcAttr
	if out, err := cmd.CombinedOutput(); err != nil {
		b.t.Fatalf("set the limit: %v: %s", err, out)
	}
}

// asLimiter in the environment makes this test program set the limit of the process that it names.
const asLimiter = "MUSTER_TEST_AS_LIMITER"

func limitThreads(pid string) error {
	number, err := strconv.Atoi(pid)
	if err != nil {
		return err
	}
	return unix.Prlimit(number, unix.RLIMIT_NPROC, &unix.Rlimit{Cur: 1, Max: 1}, nil)
}

// S-H2: the holder of a claim can fill a sandbox with processes and then send any number of requests. Init must answer them with the
// threads that it has.
func TestNoMoreThreads(t *testing.T) {
	b := confined(t)
	detached := b.exec(&initwire.Exec{ID: "prints", Detached: true, Command: []string{"sh", "-c", "while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done"}})
	defer func() { _ = detached.Close() }()
	must(t, os.WriteFile(filepath.Join(b.dir, "file"), make([]byte, 1<<20), 0o644))
	must(t, os.Chmod(b.dir, 0o777))
	b.noMore()
	ctx := t.Context()
	requests := map[string]func(name string) error{
		"list": func(string) error {
			return initwire.ListFiles(ctx, b.dial(), initwire.FileList{Path: "/"}, func(*initwire.FileEntry) error { return nil })
		},
		"read": func(string) error {
			_, r, err := initwire.ReadFile(ctx, b.dial(), initwire.FileRead{Path: filepath.Join(b.dir, "file")})
			if err == nil {
				_, err = io.Copy(io.Discard, r)
				err = errors.Join(err, r.Close())
			}
			return err
		},
		"write": func(name string) error {
			return initwire.WriteFile(ctx, b.dial(), initwire.FileWrite{Path: filepath.Join(b.dir, name)}, strings.NewReader(strings.Repeat("x", 1<<20)))
		},
		"ports": func(string) error {
			_, err := initwire.ListPorts(ctx, b.dial())
			return err
		},
		"exec": func(string) error {
			x, err := b.tryExec(&initwire.Exec{Command: []string{"true"}})
			var failed *initwire.Failed
			if err == nil {
				return errors.Join(x.Close(), errors.New("it was started"))
			}
			if errors.As(err, &failed) && failed.Class == initwire.ClassUser && failed.Reason == initwire.ReasonProcessLimit && strings.Contains(failed.Message, "resources.pids") {
				return nil
			}
			return err
		},
		"attach": func(string) error {
			x, err := initwire.AttachExec(ctx, b.dial(), &initwire.Attach{ID: "prints"})
			if err == nil {
				_, _, _, err = x.Next()
				err = errors.Join(err, x.Close())
			}
			return err
		},
	}
	for range 3 {
		var all sync.WaitGroup
		for name, request := range requests {
			for i := range 20 {
				all.Go(func() {
					if err := request(name + strconv.Itoa(i)); err != nil {
						t.Errorf("%s: %v", name, err)
					}
				})
			}
		}
		all.Wait()
	}
	if _, err := (initwire.Client{Dir: b.dir}).Status(context.Background()); err != nil {
		t.Error(err)
	}
}

// TestSilentClientsHoldNothing: clients that do not read their answers, or do not send their bytes, block no other request.
func TestSilentClientsHoldNothing(t *testing.T) {
	b := confined(t)
	must(t, os.WriteFile(filepath.Join(b.dir, "file"), make([]byte, 8<<20), 0o644))
	must(t, os.Chmod(b.dir, 0o755))
	b.noMore()
	for i := range 4 * (system.FileSlots + system.LaunchSlots) {
		conn := b.dial()
		defer func() { _ = conn.Close() }()
		var err error
		if i%2 == 0 {
			err = initwire.WriteFrame(conn, initwire.KindFileRead, (&initwire.FileRead{Path: filepath.Join(b.dir, "file")}).Fields())
		} else { // and never sends it
			err = initwire.WriteFrame(conn, initwire.KindFileWrite, (&initwire.FileWrite{Path: filepath.Join(b.dir, strconv.Itoa(i))}).Fields())
		}
		must(t, err)
	}
	must(t, initwire.ListFiles(t.Context(), b.dial(), initwire.FileList{Path: "/"}, func(*initwire.FileEntry) error { return nil }))
}

// TestThreadsAreStartedAhead: all of them are there when the command starts.
func TestThreadsAreStartedAhead(t *testing.T) {
	b := confined(t)
	threads := func() int {
		all, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(b.cmd.Process.Pid), "task"))
		must(t, err)
		return len(all)
	}
	// Its first one, the monitor and the template thread of the runtime; and now and then it starts another early.
	const others = 3
	if n := threads(); n < system.StartedThreads+others || n > system.StartedThreads+others+2 {
		t.Errorf("init has %d threads; %d are started ahead", n, system.StartedThreads)
	}
}
