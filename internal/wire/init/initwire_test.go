package initwire

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestFrames(t *testing.T) {
	var b bytes.Buffer
	start := &Start{
		Work: "/w", Command: []string{"a", "", "b c"}, Env: []string{"X=1", "Y="}, Timeout: time.Hour, KillGrace: time.Second,
		OutputLimit: 1 << 40, OpenFiles: 7, ResetOOM: true, ShieldOOM: true,
	}
	for kind, fields := range map[Kind][]byte{KindStart: start.Fields(), KindDone: nil, KindStop: NumberFields(-5)} {
		b.Reset()
		if err := WriteFrame(&b, kind, fields); err != nil {
			t.Fatal(err)
		}
		gotKind, got, err := ReadFrame(&b, MaxFrame)
		if err != nil || gotKind != kind || !bytes.Equal(got, fields) {
			t.Errorf("kind %d: %d %q %v", kind, gotKind, got, err)
		}
	}
	if got, err := ParseStart(start.Fields()); err != nil || !reflect.DeepEqual(got, start) {
		t.Errorf("start %+v, %v", got, err)
	}
	result := Result{
		Exit: 3, Signal: 9, Stopped: true, TimedOut: true, Started: 1, Ended: 2, CPU: 4, Memory: 5, Lost: 6, Leftovers: true,
	}
	state := &State{Protocol: 1, Running: true, Command: Process{Pid: 8, Start: 1 << 60}, Result: result}
	if got, err := ParseState(state.Fields()); err != nil || !reflect.DeepEqual(got, state) {
		t.Errorf("state %+v, %v", got, err)
	}
	started := &Started{Command: Process{Pid: 8, Start: 9}, At: 10}
	if got, err := ParseStarted(started.Fields()); err != nil || !reflect.DeepEqual(got, started) {
		t.Errorf("started %+v, %v", got, err)
	}
	failed := &Failed{Class: ClassUser, Reason: ReasonSpec, Message: "ünïcödé \x00"}
	if got, err := ParseFailed(failed.Fields()); err != nil || !reflect.DeepEqual(got, failed) {
		t.Errorf("failed %+v, %v", got, err)
	}
}

// TestUnknownFields: a later version's fields are skipped.
func TestUnknownFields(t *testing.T) {
	fields := appendString(nil, 200, "from the future")
	fields = append(fields, (&Started{At: 5}).Fields()...)
	if got, err := ParseStarted(fields); err != nil || got.At != 5 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestBadFrames(t *testing.T) {
	for name, b := range map[string][]byte{
		"too long": {0, 2, 0, 0, 1}, "no kind": {0, 0, 0, 0, 1}, "huge": {255, 255, 255, 255, 1},
		"cut in the head": {0, 0}, "cut in the body": {0, 0, 0, 9, 1, 2},
	} {
		if _, _, err := ReadFrame(bytes.NewReader(b), MaxFrame); err == nil || err == io.EOF {
			t.Errorf("%s: error %v", name, err)
		}
	}
	if _, _, err := ReadFrame(bytes.NewReader(nil), MaxFrame); err != io.EOF {
		t.Errorf("nothing: %v", err)
	}
}

// FuzzParse: whatever the other side says, parsing ends and does not panic.
func FuzzParse(f *testing.F) {
	f.Add((&Start{Work: "/", Command: []string{"x"}}).Fields())
	f.Add((&State{Running: true}).Fields())
	f.Add([]byte{1, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := ParseStart(b)
		if err == nil {
			again, err := ParseStart(s.Fields())
			if err != nil || !reflect.DeepEqual(s, again) {
				t.Errorf("%+v is not %+v, %v", again, s, err)
			}
		}
		_, _ = ParseState(b)
		_, _ = ParseFailed(b)
		_, _ = ParseText(b)
		_, _, _ = ReadFrame(bytes.NewReader(b), MaxFrame)
	})
}

func TestRecord(t *testing.T) {
	sandbox := &Sandbox{
		Alloc: "j-0-1", Runtime: "process", Boot: "b", At: 3, Memory: 4, Timeout: 5, KillGrace: 6,
		Cgroups: []string{"/sys/a b", `/sys/"c"`, "/sys/d"},
	}
	result := &Result{Exit: 1, Started: 2, Ended: 3, Leftovers: true}
	failed := &Failed{Class: ClassNode, Reason: ReasonNodeFault, Message: "two\nlines and \"quotes\""}
	text := sandbox.Line() + ProcessLine("init", Process{Pid: 10, Start: 11}, 1) +
		ProcessLine("command", Process{Pid: 20, Start: 21}, 22) + result.Line() + failed.Line()
	got := ParseRecord(text)
	want := &Record{
		Sandbox: sandbox, Init: &Process{10, 11}, Command: &Started{Command: Process{20, 21}, At: 22}, Result: result, Failed: failed,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	path := filepath.Join(t.TempDir(), "record")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadRecord(path); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("read %+v, %v", got, err)
	}
	if _, err := ReadRecord(path + "x"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

func TestRecordDoubtful(t *testing.T) {
	r := ParseRecord("init pid=5 start=6\ninit pid=1 start=1\ninit pid=7 start=8\npanic: boom\n\ngoroutine 1\nresult exit=0 ended=")
	if r.Init == nil || *r.Init != (Process{5, 6}) {
		t.Errorf("the first line of a kind counts: %+v", r.Init)
	}
	if r.Result != nil {
		t.Errorf("a line without its end was believed: %+v", r.Result)
	}
	if !strings.HasPrefix(r.Rest, "panic: boom\n") {
		t.Errorf("rest %q", r.Rest)
	}
	// Nobody's init is process 1 or less: signals to those mean something else.
	for _, pid := range []string{"1", "0", "-1", "x"} {
		if r := ParseRecord("init pid=" + pid + " start=1\ncommand pid=" + pid + "\n"); r.Init != nil || r.Command != nil {
			t.Errorf("pid %s was taken", pid)
		}
	}
}

func FuzzRecord(f *testing.F) {
	f.Add("sandbox alloc=\"x\\ny\" cgroup=/a cgroup=/b\n")
	f.Add("result exit=1 signal=\"\nfailed message=\"a b\" class=user\n")
	f.Fuzz(func(t *testing.T, text string) {
		if r := ParseRecord(text); r.Sandbox != nil {
			again := ParseRecord(r.Sandbox.Line())
			if !reflect.DeepEqual(again.Sandbox, r.Sandbox) {
				t.Errorf("%+v is not %+v", again.Sandbox, r.Sandbox)
			}
		}
	})
}

func TestParseStat(t *testing.T) {
	const line = "123 (a) b (c)) S 1 123 124 0 -1 4194304 100 0 0 0 5 7 11 13 20 0 1 0 4242 1000 77 18446744073709551615"
	s, ok := ParseStat(line)
	want := Stat{State: 'S', Parent: 1, Group: 123, Session: 124, Ticks: 12, Reaped: 24, Start: 4242, Threads: 1, Pages: 77}
	if !ok || s != want {
		t.Errorf("%+v, %v", s, ok)
	}
	for stat, dead := range map[Stat]bool{
		{State: 'Z', Threads: 1}: true, {State: 'Z', Threads: 3}: false, {State: 'X'}: true, {State: 'S', Threads: 1}: false,
	} {
		if stat.Dead() != dead {
			t.Errorf("%+v: dead %v", stat, stat.Dead())
		}
	}
	for _, bad := range []string{"", "1 (x", "1 (x) S 1", line[:40]} {
		if _, ok := ParseStat(bad); ok {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestSegmentName(t *testing.T) {
	for name, want := range map[string]int64{"stdout.0": 0, "stdout.4194304": 4194304} {
		if got, ok := ParseSegmentName(Stdout, name); !ok || got != want || SegmentName(Stdout, want) != name {
			t.Errorf("%s: %d, %v", name, got, ok)
		}
	}
	for _, bad := range []string{"stderr.0", "stdout.", "stdout.-1", "stdout.x", "stdout"} {
		if _, ok := ParseSegmentName(Stdout, bad); ok {
			t.Errorf("%q was taken", bad)
		}
	}
}

// hostile is an init that answers with whatever it likes.
func hostile(t *testing.T, answer func(fd int)) Client {
	t.Helper()
	dir := t.TempDir()
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Bind(fd, &syscall.SockaddrUnix{Name: filepath.Join(dir, Socket)}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 1); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, _, err := syscall.Accept4(fd, syscall.SOCK_CLOEXEC)
		if err != nil {
			return
		}
		answer(conn)
		_ = syscall.Close(conn)
	}()
	t.Cleanup(func() {
		_ = syscall.Shutdown(fd, syscall.SHUT_RDWR)
		<-done
		_ = syscall.Close(fd)
	})
	return Client{Dir: dir}
}

// TestHostileInit: an agent survives what an init says, in bounded time and memory.
func TestHostileInit(t *testing.T) {
	for name, answer := range map[string]func(fd int){
		"nothing":    func(int) {},
		"huge":       func(fd int) { _, _ = syscall.Write(fd, []byte{0x7f, 255, 255, 255, byte(KindState), 1}) },
		"wrong kind": func(fd int) { _, _ = syscall.Write(fd, []byte{0, 0, 0, 1, byte(KindStarted)}) },
		"garbage":    func(fd int) { _, _ = syscall.Write(fd, []byte{0, 0, 0, 3, byte(KindState), 1, 200}) },
		"refused": func(fd int) {
			_ = WriteFrame(fdWriter(fd), KindRefused, TextFields("no"))
		},
	} {
		if state, err := hostile(t, answer).Status(t.Context()); err == nil {
			t.Errorf("%s: %+v", name, state)
		} else if (name == "refused") != errors.Is(err, ErrRefused) {
			t.Errorf("%s: %v", name, err)
		}
	}
	silent := make(chan struct{})
	client := hostile(t, func(int) { <-silent })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := client.Status(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("silent: %v", err)
	}
	close(silent)
	if _, err := (Client{Dir: t.TempDir()}).Status(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no socket: %v", err)
	}
}

type fdWriter int

func (f fdWriter) Write(p []byte) (int, error) { return syscall.Write(int(f), p) }
