package initwire

import (
	"bytes"
	"context"
	"errors"
	"io"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestExecMessages(t *testing.T) {
	exec := &Exec{
		ID: "a.b-c_D9", Command: []string{"sh", "", "-c", "a b"}, Env: []string{"X=1", "Y="}, CleanEnv: true, Work: "/w", User: "me:us",
		TTY: true, Rows: 25, Cols: 80, Stdin: true, Timeout: time.Minute, KillGrace: -1, Detached: true, OwnStderr: true, HideEnv: "HIDE_", Account: true,
	}
	started := &ExecStarted{ID: "x", At: 1, Stdout: 2, Stderr: 3}
	ended := &ExecEnded{Exit: 1, Signal: 2, TimedOut: true, Started: 3, Ended: 4, Lost: 5, Why: "so"}
	attach := &Attach{ID: "x", StdoutOffset: FromKept, StderrOffset: 1 << 40, Stdin: true}
	signal := &ExecSignal{ID: "x", Signal: syscall.SIGKILL}
	size := &Size{Rows: 1, Cols: 2}
	list := ExecList{{ID: "x", Running: true, Detached: true, TTY: true, Ended: *ended}, {ID: "y"}}
	for _, c := range []struct {
		sent, got any
		err       error
	}{
		pairOf(exec, ParseExec), pairOf(&Exec{}, ParseExec), pairOf(started, ParseExecStarted), pairOf(ended, ParseExecEnded),
		pairOf(attach, ParseAttach), pairOf(signal, ParseExecSignal), pairOf(size, ParseSize), pairOf(list, ParseExecList),
	} {
		if c.err != nil || !reflect.DeepEqual(c.sent, c.got) {
			t.Errorf("got %+v, want %+v, %v", c.got, c.sent, c.err)
		}
	}
}

func pairOf[T interface{ Fields() []byte }](sent T, parse func([]byte) (T, error)) (c struct {
	sent, got any
	err       error
}) {
	got, err := parse(sent.Fields())
	c.sent, c.got, c.err = sent, got, err
	return c
}

func TestExecID(t *testing.T) {
	for id, ok := range map[string]bool{
		"a": true, "..": true, "A.b_c-9": true, strings.Repeat("x", 64): true,
		"": false, "a/b": false, "a b": false, "ä": false, "a\x00": false, strings.Repeat("x", 65): false,
	} {
		if ExecID(id) != ok {
			t.Errorf("%q: %v", id, !ok)
		}
	}
}

func FuzzExec(f *testing.F) {
	f.Add((&Exec{ID: "x", Command: []string{"a"}, Timeout: 1}).Fields())
	f.Add((ExecList{{ID: "x", Ended: ExecEnded{Why: "y"}}}).Fields())
	f.Add([]byte{1, 3, 2, 200, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		if e, err := ParseExec(b); err == nil {
			if again, err := ParseExec(e.Fields()); err != nil || !reflect.DeepEqual(e, again) {
				t.Errorf("%+v is not %+v, %v", again, e, err)
			}
		}
		if l, err := ParseExecList(b); err == nil {
			if again, err := ParseExecList(l.Fields()); err != nil || !reflect.DeepEqual(l, again) {
				t.Errorf("%+v is not %+v, %v", again, l, err)
			}
		}
		_, _ = ParseExecStarted(b)
		_, _ = ParseExecEnded(b)
		_, _ = ParseAttach(b)
		_, _ = ParseExecSignal(b)
		_, _ = ParseSize(b)
	})
}

// said is a connection on which the other side has said something already, byte by byte.
type said struct {
	io.Reader
	wrote  bytes.Buffer
	closed chan struct{}
}

func saying(frames []byte) *said {
	return &said{Reader: io.MultiReader(bytes.NewReader(frames)), closed: make(chan struct{})}
}

func (s *said) Read(p []byte) (int, error)  { return s.Reader.Read(p[:min(len(p), 1)]) }
func (s *said) Write(p []byte) (int, error) { return s.wrote.Write(p) }
func (s *said) Close() error {
	select {
	case <-s.closed:
	default:
		close(s.closed)
	}
	return nil
}

func frames(t *testing.T, kv ...any) []byte {
	t.Helper()
	var b bytes.Buffer
	for i := 0; i < len(kv); i += 2 {
		if err := WriteFrame(&b, kv[i].(Kind), kv[i+1].([]byte)); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

func TestExecClient(t *testing.T) {
	big := bytes.Repeat([]byte("x"), MaxBytes)
	conn := saying(frames(t, KindExecStarted, (&ExecStarted{ID: "x", At: 7}).Fields(), KindStdout, []byte("out"), KindStderr, big,
		KindExecEnded, (&ExecEnded{Exit: 3}).Fields()))
	x, err := StartExec(t.Context(), conn, &Exec{Command: []string{"a"}})
	if err != nil || x.Started.ID != "x" || x.Started.At != 7 {
		t.Fatal(x, err)
	}
	if kind, data, _, err := x.Next(); kind != KindStdout || string(data) != "out" || err != nil {
		t.Errorf("%v %q %v", kind, data, err)
	}
	if kind, data, _, err := x.Next(); kind != KindStderr || !bytes.Equal(data, big) || err != nil {
		t.Errorf("%v %d %v", kind, len(data), err)
	}
	if kind, _, ended, err := x.Next(); kind != KindExecEnded || ended.Exit != 3 || err != nil {
		t.Errorf("%v %+v %v", kind, ended, err)
	}
	if _, _, _, err := x.Next(); err != io.EOF {
		t.Errorf("%v", err)
	}
	conn.wrote.Reset()
	if err := x.WriteStdin(bytes.Repeat([]byte("y"), 2*MaxBytes+1)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []int{MaxBytes, MaxBytes, 1} {
		if kind, data, err := ReadFrame(&conn.wrote, MaxFrame); kind != KindStdin || len(data) != want || err != nil {
			t.Errorf("%v %d %v", kind, len(data), err)
		}
	}
}

// TestExecClientDoubts: what a lying or dying init says becomes an error, and nothing else.
func TestExecClientDoubts(t *testing.T) {
	failed := &Failed{Class: ClassUser, Reason: ReasonExecExists, Message: "x exists"}
	started := (&ExecStarted{ID: "x"}).Fields()
	for name, c := range map[string]struct {
		said []byte
		is   func(error) bool
	}{
		"failed":     {frames(t, KindFailed, failed.Fields()), func(err error) bool { var f *Failed; return errors.As(err, &f) && *f == *failed }},
		"refused":    {frames(t, KindRefused, TextFields("no")), func(err error) bool { return errors.Is(err, ErrRefused) }},
		"silent":     {nil, func(err error) bool { return err == io.EOF }},
		"cut short":  {frames(t, KindExecStarted, started)[:6], func(err error) bool { return err == io.ErrUnexpectedEOF }},
		"too long":   {[]byte{255, 255, 255, 255, 160}, func(err error) bool { return err != nil }},
		"other kind": {frames(t, KindState, []byte(nil)), func(err error) bool { return err != nil }},
		"bad fields": {frames(t, KindExecStarted, []byte{1, 200}), func(err error) bool { return err != nil }},
	} {
		conn := saying(c.said)
		x, err := StartExec(t.Context(), conn, &Exec{})
		if x != nil || !c.is(err) {
			t.Errorf("%s: %v", name, err)
		}
		select {
		case <-conn.closed:
		default:
			t.Errorf("%s: not closed", name)
		}
	}
	x, err := StartExec(t.Context(), saying(frames(t, KindExecStarted, started, KindExecStarted, started)), &Exec{})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := x.Next(); err == nil {
		t.Error("a second start was taken")
	}
	if _, err := ListExecs(t.Context(), saying(bytes.Repeat(frames(t, KindExecList, ExecList{{ID: "x"}}.Fields()), MaxExecs+1))); err == nil {
		t.Error("an endless list was taken")
	}
}

// TestListExecsBound: a list is bounded by what is in it, not only by its frames.
func TestListExecsBound(t *testing.T) {
	one := ExecList{{ID: "x"}}.Fields()
	list := func(n int) []byte {
		const most = 1024 // in a frame
		var said []byte
		for ; n > 0; n -= most {
			said = append(said, frames(t, KindExecList, bytes.Repeat(one, min(n, most)))...)
		}
		return append(said, frames(t, KindDone, []byte{})...)
	}
	if all, err := ListExecs(t.Context(), saying(list(maxListed))); err != nil || len(all) != maxListed || all[maxListed-1].ID != "x" {
		t.Errorf("%d, %v", len(all), err)
	}
	if all, err := ListExecs(t.Context(), saying(list(maxListed+1))); err != errTooMany || all != nil {
		t.Errorf("%d, %v", len(all), err)
	}
}

// TestExecClientPatience: only ctx bounds the wait for an answer.
func TestExecClientPatience(t *testing.T) {
	r, w := io.Pipe()
	defer func() { _ = w.Close() }()
	conn := &said{Reader: r, closed: make(chan struct{})}
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	go func() {
		<-conn.closed
		_ = w.CloseWithError(io.ErrClosedPipe)
	}()
	cancel(why)
	if _, err := StartExec(ctx, conn, &Exec{}); err != why {
		t.Errorf("%v", err)
	}
}
