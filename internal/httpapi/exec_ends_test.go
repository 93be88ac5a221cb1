package httpapi

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/musterhq/muster/api"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// TestExecBinaryBothWays: many bytes, none lost, none changed, in order.
func TestExecBinaryBothWays(t *testing.T) {
	in := newInside(t)
	r := shell("tee /dev/stderr")
	r.Stdin = true
	x := in.open(t, r)
	x.started()
	const size = 16 << 20
	sum := sha256.New()
	var wg sync.WaitGroup
	wg.Go(func() {
		chunk := make([]byte, 256<<10)
		for n := 0; n < size; n += len(chunk) {
			for i := range chunk {
				chunk[i] = byte((n + i) ^ (n+i)>>8 ^ (n+i)>>16)
			}
			sum.Write(chunk)
			if err := x.c.Write(x.ctx, websocket.MessageBinary, chunk); err != nil {
				t.Error(err)
				return
			}
		}
		if err := x.c.Write(x.ctx, websocket.MessageText, []byte(`{"type":"close-stdin"}`)); err != nil {
			t.Error(err)
		}
	})
	end := x.ended()
	wg.Wait()
	for i := 1; i <= 2; i++ {
		if got := sha256.Sum256(x.out[i].Bytes()); x.out[i].Len() != size || !bytes.Equal(got[:], sum.Sum(nil)) {
			t.Errorf("stream %d: %d bytes", i, x.out[i].Len())
		}
	}
	if end.ExitCode != 0 {
		t.Errorf("%+v", end)
	}
}

// TestExecClientVanishes: without a goodbye, in every state of an execution. The command dies
// with its client, and nothing is left; goleak and the bench look for that.
func TestExecClientVanishes(t *testing.T) {
	in := newInside(t)
	in.api.patience.Quiet, in.api.patience.Pong = 50*time.Millisecond, 200*time.Millisecond
	for name, r := range map[string]api.ExecRequest{
		"silent":  shell("echo $$; sleep 1000"),
		"writing": shell("echo $$; cat /dev/zero"),
		"unread":  {Command: []string{"sh", "-c", "echo $$; sleep 1000"}, Stdin: true},
	} {
		x := in.open(t, r)
		x.started()
		x.until("\n")
		pid, err := strconv.Atoi(strings.TrimSpace(strings.SplitN(x.out[1].String(), "\n", 2)[0]))
		if err != nil {
			t.Fatal(err)
		}
		if r.Stdin {
			// More than fits anywhere: the receiving side waits for the command.
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			for x.c.Write(ctx, websocket.MessageBinary, make([]byte, 1<<20)) == nil {
			}
			cancel()
		}
		_ = x.c.CloseNow()
		in.eventually(name+": the command dies with its client", func() bool {
			b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
			return err != nil || bytes.Contains(b, []byte(") Z"))
		})
	}
	// Before the first message, and of the plain form.
	c, _, err := in.dial(t, "/exec")
	if err != nil {
		t.Fatal(err)
	}
	_ = c.CloseNow()
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, "POST", in.srv.URL+in.path+"/exec", strings.NewReader(`{"command":["sleep","1000"],"id":"plain"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		if resp, err := client.Do(req); err == nil {
			_ = resp.Body.Close()
		}
	}()
	in.eventually("it runs", func() bool { return in.do("GET", in.path+"/executions/plain", "").StatusCode == 200 })
	cancel()
	<-gone
	in.eventually("it ends with its client", func() bool {
		return !get[api.Execution](in.bench, in.path+"/executions/plain").Running
	})
}

// TestExecDetachedGoesOn: whoever starts a detached execution may leave.
func TestExecDetachedGoesOn(t *testing.T) {
	in := newInside(t)
	r := shell("while [ ! -e go ]; do sleep 0.01; done; echo late")
	r.Detach = true
	x := in.open(t, r)
	id := x.started()
	_ = x.c.CloseNow()
	in.eventually("its connection is closed", func() bool { return in.inits.open.Load() == 0 })
	if err := os.WriteFile(filepath.Join(in.work, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	x = in.open(t, api.ExecAttach{Attach: id})
	x.started()
	if end := x.ended(); end.ExitCode != 0 || x.out[1].String() != "late\n" {
		t.Errorf("%+v %q", end, x.out[1].String())
	}
}

// TestExecDetachedLong: more than the spool holds passes through an attached client without a pause for ever.
func TestExecDetachedLong(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 100 MiB to the disk")
	}
	in := newInside(t)
	const size = initwire.SpoolLimit + 40<<20
	r := shell("head -c " + strconv.Itoa(size) + " /dev/zero")
	r.Detach = true
	x := in.open(t, r)
	x.started()
	got := 0
	for {
		kind, b, err := x.c.Read(x.ctx)
		if err != nil {
			t.Fatalf("%v after %d", err, got)
		}
		if kind == websocket.MessageText {
			break
		}
		got += len(b) - 1
	}
	x.closed()
	if got != size {
		t.Errorf("%d of %d", got, size)
	}
}

// TestExecNeverReads: a client that never reads holds the command up and no memory.
func TestExecNeverReads(t *testing.T) {
	in := newInside(t)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	const clients = 20
	var all []*talk
	for i := range clients {
		x := in.open(t, api.ExecRequest{Command: []string{"sh", "-c", fmt.Sprintf("cat /dev/zero & echo $! > pid%d; wait", i)}})
		x.started()
		all = append(all, x)
	}
	// Held up: it writes no more, which the kernel's count of what it wrote shows.
	written := func(i int) string {
		pid, err := os.ReadFile(filepath.Join(in.work, fmt.Sprintf("pid%d", i)))
		if err != nil {
			return ""
		}
		io, err := os.ReadFile(filepath.Join("/proc", strings.TrimSpace(string(pid)), "io"))
		if err != nil || strings.Contains(string(io), "wchar: 0\n") {
			return ""
		}
		return string(io)
	}
	var last [clients]string
	same := 0
	in.eventually("every command is held up", func() bool {
		var now [clients]string
		began := true
		for i := range all {
			now[i] = written(i)
			began = began && now[i] != ""
		}
		if same++; !began || now != last {
			same = 0
		}
		last = now
		return same >= 25
	})
	runtime.GC()
	runtime.ReadMemStats(&after)
	if held := int64(after.HeapAlloc) - int64(before.HeapAlloc); held > clients<<20 {
		t.Errorf("%d clients hold %d bytes", clients, held)
	}
	for _, x := range all {
		_ = x.c.CloseNow()
	}
}

// TestExecServerStops: streams end with a sentence when the server does.
func TestExecServerStops(t *testing.T) {
	in := newInside(t)
	x := in.open(t, shell("sleep 1000"))
	x.started()
	in.stop()
	x.failed(503, "unavailable")
}

// TestExecInitBreaks: init is gone in the middle, or says what makes no sense.
func TestExecInitBreaks(t *testing.T) {
	in := prepareInside(t)
	var how string
	in.playInit(t, func(c *net.UnixConn, _ initwire.Kind, _ []byte) {
		_ = initwire.WriteFrame(c, initwire.KindExecStarted, (&initwire.ExecStarted{ID: "x"}).Fields())
		_ = initwire.WriteFrame(c, initwire.KindStdout, []byte("part"))
		_, _ = io.WriteString(c, how)
	})
	for _, how = range []string{"", "\xff\xff\xff\xff\xa1", "\x00\x00\x00\x01\x07"} {
		x := in.open(t, shell("true"))
		x.started()
		x.failed(502, api.CodeSandbox)
		if x.out[1].String() != "part" {
			t.Errorf("%q", x.out[1].String())
		}
	}
}

func TestExecPings(t *testing.T) {
	in := newInside(t)
	in.api.patience.Quiet = 10 * time.Millisecond
	pinged := make(chan struct{}, 100)
	c, _, err := in.dial(t, "/exec", func(o *websocket.DialOptions) {
		o.OnPingReceived = func(context.Context, []byte) bool {
			select {
			case pinged <- struct{}{}:
			default:
			}
			return true
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	x := &talk{TB: t, c: c, ctx: t.Context()}
	x.say(shell("while [ ! -e go ]; do sleep 0.01; done"))
	x.started()
	done := make(chan struct{})
	go func() {
		defer close(done)
		x.ended()
	}()
	for range 3 {
		select {
		case <-pinged:
		case <-time.After(10 * time.Second):
			t.Fatal("no ping")
		}
	}
	if err := os.WriteFile(filepath.Join(in.work, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	<-done
}
