package sandbox

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/musterhq/muster/internal/programtest"
	"github.com/musterhq/muster/internal/sandbox/sandboxtest"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// asInit in the environment makes this test program be muster-init.
const asInit = "MUSTER_TEST_AS_INIT"

func TestMain(m *testing.M) {
	if os.Getenv(asInit) != "" {
		_ = os.Unsetenv(asInit)
		os.Exit(Run())
	}
	if pid := os.Getenv(asLimiter); pid != "" {
		if err := limitThreads(pid); err != nil {
			_, _ = os.Stderr.WriteString(err.Error())
			os.Exit(1)
		}
		os.Exit(0)
	}
	code := m.Run()
	if built.dir != "" {
		_ = os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

// built is the real muster-init, made when the first test asks for it.
var built struct {
	once         sync.Once
	dir, program string
	err          error
}

func initProgram() (string, error) {
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "muster-init-"); built.err == nil {
			built.program, built.err = programtest.Init(built.dir)
		}
	})
	return built.program, built.err
}

// box is a sandbox with a real init, spoken to over its real socket.
type box struct {
	t      testing.TB
	dir    string
	socket string
	cmd    *exec.Cmd
	ended  chan struct{}
	// crashed: the test ends init itself, so that it need not end well.
	crashed atomic.Bool
}

// starter makes the process that is to be init; nil: this program.
type starter func(dir string) *exec.Cmd

func startBox(t testing.TB, start *initwire.Start, how starter) *box {
	t.Helper()
	b, failed := tryBox(t, start, how)
	if failed != nil {
		t.Fatalf("start: %+v", failed)
	}
	return b
}

func tryBox(t testing.TB, start *initwire.Start, how starter) (*box, *initwire.Failed) {
	t.Helper()
	// Not t.TempDir: the address of a socket is short, and the name of a test may be long.
	dir, err := os.MkdirTemp("", "box-")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	b := &box{t: t, dir: dir, socket: filepath.Join(dir, initwire.Socket), ended: make(chan struct{})}
	if how == nil {
		how = func(string) *exec.Cmd {
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = []string{asInit + "=1", "GOMAXPROCS=1", "GORACE=" + os.Getenv("GORACE")}
			return cmd
		}
	}
	b.cmd = how(dir)
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	must(t, err)
	ours, theirs := os.NewFile(uintptr(pair[0]), "control"), os.NewFile(uintptr(pair[1]), "control of init")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: b.socket, Net: "unix"})
	must(t, err)
	listener.SetUnlinkOnClose(false)
	listening, err := listener.File()
	must(t, err)
	record, err := os.OpenFile(filepath.Join(dir, initwire.InitRecord), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	must(t, err)
	out, err := os.Open(dir)
	must(t, err)
	b.cmd.Stderr = record
	b.cmd.ExtraFiles = []*os.File{theirs, listening, record, out}
	must(t, b.cmd.Start())
	for _, f := range append([]io.Closer{listener}, theirs, listening, record, out) {
		_ = f.Close()
	}
	go func() {
		_ = b.cmd.Wait()
		close(b.ended)
	}()
	t.Cleanup(b.stop)
	must(t, initwire.WriteFrame(ours, initwire.KindStart, start.Fields()))
	kind, fields, err := initwire.ReadFrame(ours, initwire.MaxFrame)
	_ = ours.Close()
	if err != nil {
		b.crashed.Store(true)
		t.Fatalf("answer of init: %v; it said: %s", err, b.record().Rest)
	}
	if kind == initwire.KindFailed {
		failed, err := initwire.ParseFailed(fields)
		must(t, err)
		return b, failed
	}
	return b, nil
}

// stop ends the sandbox, and checks that init had nothing to complain of.
func (b *box) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), sandboxtest.Patience)
	defer cancel()
	_ = initwire.Client{Dir: b.dir}.Stop(ctx, 0)
	select {
	case <-b.ended:
	case <-ctx.Done():
		b.t.Error("init does not end")
	}
	_ = b.cmd.Process.Kill()
	<-b.ended
	if rest := b.record().Rest; rest != "" && !b.crashed.Load() {
		b.t.Errorf("last words of init: %s", rest)
	}
}

func (b *box) record() *initwire.Record {
	b.t.Helper()
	r, err := initwire.ReadRecord(filepath.Join(b.dir, initwire.InitRecord))
	must(b.t, err)
	return r
}

func (b *box) dial() net.Conn {
	b.t.Helper()
	for deadline := time.Now().Add(sandboxtest.Patience); ; {
		conn, err := net.Dial("unix", b.socket)
		if err == nil {
			return conn
		}
		// The backlog is full: there is no event for its end.
		if !strings.Contains(err.Error(), "temporarily unavailable") || time.Now().After(deadline) {
			b.t.Error(err)
			panic(err)
		}
		time.Sleep(time.Millisecond)
	}
}

func (b *box) exec(e *initwire.Exec) *initwire.Execution {
	b.t.Helper()
	x, err := b.tryExec(e)
	if err != nil {
		b.t.Fatalf("exec %q: %v", e.Command, err)
	}
	return x
}

func (b *box) tryExec(e *initwire.Exec) (*initwire.Execution, error) {
	return initwire.StartExec(context.Background(), b.dial(), e)
}

func (b *box) attach(a *initwire.Attach) *initwire.Execution {
	b.t.Helper()
	x, err := initwire.AttachExec(context.Background(), b.dial(), a)
	must(b.t, err)
	return x
}

// heard is all that an execution said.
type heard struct {
	stdout, stderr string
	ended          *initwire.ExecEnded
}

func listen(x *initwire.Execution) (h heard, err error) {
	var out, errs strings.Builder
	defer func() { h.stdout, h.stderr = out.String(), errs.String() }()
	for {
		kind, data, ended, err := x.Next()
		if err != nil {
			return h, err
		}
		switch kind {
		case initwire.KindStdout:
			out.Write(data)
		case initwire.KindStderr:
			errs.Write(data)
		default:
			h.ended = ended
			return h, x.Close()
		}
	}
}

// all runs an execution to its end.
func (b *box) all(e *initwire.Exec) heard {
	b.t.Helper()
	h, err := listen(b.exec(e))
	if err != nil {
		b.t.Fatalf("exec %q: %v, after %q and %q", e.Command, err, h.stdout, h.stderr)
	}
	return h
}

func sh(script string) *initwire.Exec {
	return &initwire.Exec{Command: []string{"sh", "-c", script}}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// plain is a sandbox whose command sleeps.
func plain(t testing.TB) *box {
	t.Helper()
	return startBox(t, &initwire.Start{
		Work: "/", Command: []string{"sleep", "100000"}, Env: []string{"PATH=/usr/bin:/bin", "KEPT=a b", "ALSO=x"}, OutputLimit: 1 << 20,
		KillGrace: time.Second, OpenFiles: 65536,
	}, nil)
}

func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	st, ok := initwire.ParseStat(string(b))
	return ok && !st.Dead()
}
