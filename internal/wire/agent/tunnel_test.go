package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster"
)

// upgrade answers as an agent would, and hands the connection to a function.
func upgrade(w http.ResponseWriter, use func(net.Conn, io.Reader)) {
	conn, in, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+UpgradeInit+"\r\n\r\n")
	use(conn, in)
}

func TestTunnel(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || r.URL.Path != "/v1/allocs/u-0-1/init" || r.Header.Get("Upgrade") != UpgradeInit || r.Header.Get("Connection") != "Upgrade" || len(r.Header["Idempotency-Key"]) > 0 {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		upgrade(w, func(conn net.Conn, in io.Reader) {
			b, _ := io.ReadAll(in) // needs the half-close
			_, _ = conn.Write(bytes.ToUpper(b))
		})
	})
	for range 3 {
		tunnel, err := c.Tunnel(t.Context(), "u-0-1", nil)
		if err != nil {
			t.Fatal(err)
		}
		if n, known := tunnel.OOMKills(); n != 0 || known {
			t.Errorf("of an agent that does not tell: %d %v", n, known)
		}
		if _, err := io.WriteString(tunnel, "hello"); err != nil {
			t.Fatal(err)
		}
		if err := tunnel.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(tunnel); err != nil || string(b) != "HELLO" {
			t.Errorf("%q %v", b, err)
		}
		if err := tunnel.Close(); err != nil {
			t.Error(err)
		}
	}
}

// handOver answers as an agent on this machine would: with a descriptor. init is the other end of it.
func handOver(t *testing.T, w http.ResponseWriter) (init *net.UnixConn, agent net.Conn) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Error(err)
		return nil, nil
	}
	f := os.NewFile(uintptr(pair[1]), "init")
	inside, err := net.FileConn(f)
	_ = f.Close()
	if err != nil {
		t.Error(err)
		return nil, nil
	}
	agent, _, err = http.NewResponseController(w).Hijack()
	if err != nil {
		t.Error(err)
		return nil, nil
	}
	text := "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + UpgradeInit + "\r\n" + HeaderHandOver + ": socket\r\n\r\n"
	if _, _, err := agent.(*net.UnixConn).WriteMsgUnix([]byte(text), syscall.UnixRights(pair[0]), nil); err != nil {
		t.Error(err)
	}
	_ = syscall.Close(pair[0])
	return inside.(*net.UnixConn), agent
}

// TestTunnelHandedOver: the agent gives the connection to init itself; what is said goes there, and each side's end is told.
func TestTunnelHandedOver(t *testing.T) {
	ended := make(chan struct{}, 1)
	where := make(chan *net.UnixConn, 1)
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(HeaderHandOver) == "" {
			t.Error("it was not asked for")
		}
		inside, conn := handOver(t, w)
		if conn == nil {
			return
		}
		defer func() { _ = conn.Close() }()
		where <- inside
		_, _ = io.Copy(io.Discard, conn)
		ended <- struct{}{}
	})
	tunnel, err := c.Tunnel(t.Context(), "u-0-1", nil)
	if err != nil {
		t.Fatal(err)
	}
	inside := <-where
	defer func() { _ = inside.Close() }()
	if _, err := tunnel.Write([]byte("to init")); err != nil {
		t.Error(err)
	}
	if err := tunnel.CloseWrite(); err != nil {
		t.Error(err)
	}
	if b, err := io.ReadAll(inside); err != nil || string(b) != "to init" {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := inside.Write([]byte("from init")); err != nil {
		t.Error(err)
	}
	_ = inside.CloseWrite()
	if b, err := io.ReadAll(tunnel); err != nil || string(b) != "from init" {
		t.Errorf("%q, %v", b, err)
	}
	_ = tunnel.Close()
	<-ended // the agent is told

	// The context's end is the end of both.
	ctx, cancel := context.WithCancel(t.Context())
	if tunnel, err = c.Tunnel(ctx, "u-0-1", nil); err != nil {
		t.Fatal(err)
	}
	second := <-where
	defer func() { _ = second.Close() }()
	cancel()
	<-ended
	if _, err := io.ReadAll(second); err != nil {
		t.Error(err)
	}
	_ = tunnel.Close()
}

// TestTunnelClosedHere: a tunnel that this side has closed does not blame the agent.
func TestTunnelClosedHere(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		inside, conn := handOver(t, w)
		if conn == nil {
			return
		}
		_, _ = io.Copy(io.Discard, conn)
		_, _ = conn.Close(), inside.Close()
	})
	tunnel, err := c.Tunnel(t.Context(), "u-0-1", nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = tunnel.Close()
	tunnel.watch() // as the one that is at it does
	if _, err := tunnel.Read(make([]byte, 1)); err == nil || strings.Contains(err.Error(), "the agent has ended") {
		t.Error(err)
	}
}

// TestTunnelUnanswered: an agent that closes the connection without a word is said to have done that.
func TestTunnelUnanswered(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
			_ = conn.Close()
		}
	})
	if _, err := c.Tunnel(t.Context(), "u-0-1", nil); !muster.IsKind(err, muster.FaultUnavailable) || !strings.Contains(err.Error(), "the agent closed the connection") {
		t.Error(err)
	}
}

// TestTunnelStrayDescriptor: one that comes where none is awaited is not kept.
func TestTunnelStrayDescriptor(t *testing.T) {
	here, agent := unixPair(t)
	stray, other := unixPair(t)
	done := make(chan error, 1)
	go func() {
		_, err := openTunnel(here, "/", nil)
		done <- err
	}()
	const body = `{"message":"not here"}`
	_, _ = fmt.Fprintf(agent, "HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n", len(body))
	control := func(c *net.UnixConn, do func(fd int)) {
		raw, err := c.SyscallConn()
		if err == nil {
			err = raw.Control(func(fd uintptr) { do(int(fd)) })
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	// With the head it would come in time.
	for unread := -1; unread != 0; runtime.Gosched() {
		control(agent, func(fd int) { unread, _ = unix.IoctlGetInt(fd, unix.SIOCOUTQ) })
	}
	control(stray, func(fd int) {
		if _, _, err := agent.WriteMsgUnix([]byte(body), syscall.UnixRights(fd), nil); err != nil {
			t.Error(err)
		}
	})
	_ = stray.Close()
	if err := <-done; err == nil || !strings.Contains(err.Error(), "not here") {
		t.Error(err)
	}
	control(other, func(fd int) {
		look := []unix.PollFd{{Fd: int32(fd)}}
		if n, err := unix.Poll(look, 0); n != 1 || look[0].Revents&unix.POLLHUP == 0 {
			t.Errorf("it is still open: %d, %v", n, err)
		}
	})
}

func unixPair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range pair {
		f := os.NewFile(uintptr(fd), "")
		conn, err := net.FileConn(f)
		_ = f.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		ends[i] = conn.(*net.UnixConn)
	}
	return ends[0], ends[1]
}

// TestSpareConnections: one is made ready for the next tunnel, and one that the agent has left is not used.
func TestSpareConnections(t *testing.T) {
	conns := make(chan net.Conn, 10)
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		inside, conn := handOver(t, w)
		if conn == nil {
			return
		}
		_, _ = io.Copy(io.Discard, conn)
		_, _ = conn.Close(), inside.Close()
	})
	dial := c.dial
	c.dial = func(ctx context.Context) (net.Conn, error) {
		conn, err := dial(ctx)
		if err == nil {
			conns <- conn
		}
		return conn, err
	}
	use := func() {
		t.Helper()
		tunnel, err := c.Tunnel(t.Context(), "u-0-1", nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = tunnel.Close()
	}
	idle := func() (n int) {
		c.spares.mu.Lock()
		defer c.spares.mu.Unlock()
		return len(c.spares.idle)
	}
	ready := func() {
		for idle() == 0 {
			runtime.Gosched()
		}
	}
	use()
	<-conns
	spare := <-conns
	ready()
	use()
	if <-conns == spare { // dialled after its use, for the next
		t.Error("twice the same")
	}
	ready()
	c.spares.mu.Lock()
	for _, x := range c.spares.idle {
		_ = x.conn.(*net.UnixConn).CloseRead() // as if the other side had
	}
	c.spares.mu.Unlock()
	use() // anew, and one for later
	<-conns
	<-conns
	ready()
	c.Close()
	if n := idle(); n != 0 {
		t.Errorf("%d are left", n)
	}
	use()
	<-conns
	select {
	case <-conns:
		t.Error("made ahead after the end")
	default:
	}
}

// TestTunnelFirst: what goes along with the opening comes first, and what the other side said at once is read.
func TestTunnelFirst(t *testing.T) {
	status := http.StatusSwitchingProtocols
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if status != http.StatusSwitchingProtocols {
			w.WriteHeader(status)
			return
		}
		conn, in, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.Close() }()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: "+UpgradeInit+"\r\n"+HeaderOOMKills+": 3\r\n\r\nat once ")
		b, _ := io.ReadAll(in)
		_, _ = conn.Write(bytes.ToUpper(b))
	})
	for _, first := range []string{"hello ", strings.Repeat("much ", 200_000)} {
		tunnel, err := c.Tunnel(t.Context(), "u-0-1", []byte(first))
		if err != nil {
			t.Fatal(err)
		}
		if n, known := tunnel.OOMKills(); n != 3 || !known {
			t.Errorf("%d %v", n, known)
		}
		_, _ = io.WriteString(tunnel, "and more")
		_ = tunnel.CloseWrite()
		if b, err := io.ReadAll(tunnel); err != nil || string(b) != "at once "+strings.ToUpper(first)+"AND MORE" {
			t.Errorf("%d bytes, %v", len(b), err)
		}
		_ = tunnel.Close()
	}
	// Refused before it has taken all of it: why is told, and not that the connection broke.
	status = http.StatusNotFound
	if _, err := c.Tunnel(t.Context(), "u-0-1", make([]byte, 8<<20)); !muster.IsKind(err, muster.FaultNotFound) {
		t.Error(err)
	}
}

// TestTunnelWritesStayTogether: several write at once, as those who speak to one execution do.
func TestTunnelWritesStayTogether(t *testing.T) {
	const writers, each, size = 8, 20, 100_000
	got := make(chan error, 1)
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		upgrade(w, func(_ net.Conn, in io.Reader) {
			buf := make([]byte, size)
			for range writers * each {
				if _, err := io.ReadFull(in, buf); err != nil {
					got <- err
					return
				}
				if !bytes.Equal(buf, bytes.Repeat(buf[:1], size)) {
					got <- errors.New("two writes are mixed")
					return
				}
			}
			got <- nil
		})
	})
	tunnel, err := c.Tunnel(t.Context(), "u-0-1", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tunnel.Close() }()
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			b := bytes.Repeat([]byte{byte(i)}, size)
			for range each {
				if _, err := tunnel.Write(b); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if err := <-got; err != nil {
		t.Error(err)
	}
}

// TestTunnelEndsWithItsContext, whatever goes on in it, and says why.
func TestTunnelEndsWithItsContext(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		upgrade(w, func(conn net.Conn, _ io.Reader) {
			_, _ = conn.Read(make([]byte, 1)) // takes one byte, and no more until the end
			<-release
		})
	})
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	tunnel, err := c.Tunnel(ctx, "u-0-1", nil)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := tunnel.Read(make([]byte, 1)); !errors.Is(err, why) {
			t.Errorf("read: %v", err)
		}
	})
	full := make(chan struct{})
	wg.Go(func() {
		_, _ = tunnel.Write(make([]byte, 1))
		close(full)
		if _, err := tunnel.Write(make([]byte, 64<<20)); !errors.Is(err, why) {
			t.Errorf("write: %v", err)
		}
	})
	<-full
	cancel(why)
	wg.Wait()
	// One that waits for its turn to write is not left behind either.
	if _, err := tunnel.Write([]byte{0}); !errors.Is(err, why) {
		t.Errorf("late write: %v", err)
	}
	_ = tunnel.Close()
	if _, err := c.Tunnel(ctx, "u-0-1", nil); !errors.Is(err, why) {
		t.Errorf("%v", err)
	}
}

func TestTunnelRefused(t *testing.T) {
	var status int
	var body, upgraded string
	var mu sync.Mutex // the race detector sees no order in what comes with a descriptor
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if upgraded != "" {
			w.Header().Set("Upgrade", upgraded)
			w.Header().Set("Connection", "Upgrade")
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	})
	for _, x := range []struct {
		status         int
		body, upgraded string
		kind           muster.FaultKind
		says           string
	}{
		{404, `{"message":"not here"}`, "", muster.FaultNotFound, "not here"},
		{409, `{"message":"does not run yet"}`, "", muster.FaultConflict, "yet"},
		{410, `{"message":"has ended"}`, "", muster.FaultTooOld, "ended"},
		{503, `{"message":"ending"}`, "", muster.FaultUnavailable, "ending"},
		{200, `{}`, "", muster.FaultInternal, "200"},
		{101, ``, "websocket", muster.FaultInternal, "websocket"},
	} {
		mu.Lock()
		status, body, upgraded = x.status, x.body, x.upgraded
		mu.Unlock()
		if tunnel, err := c.Tunnel(t.Context(), "u-0-1", nil); muster.KindOf(err) != x.kind || !strings.Contains(err.Error(), x.says) || tunnel != nil {
			t.Errorf("%d: %v", x.status, err)
		}
	}
}

func TestStatsImagesGrants(t *testing.T) {
	var given []PullGrant
	var asked []string
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Method+" "+r.URL.RequestURI())
		switch r.URL.Path {
		case "/v1/allocs/u-0-1/stats":
			_, _ = io.WriteString(w, `{"at":5,"cpu_us":7,"memory":8,"pids":2,"disk":3}`)
		case "/v1/images":
			if r.Method == http.MethodGet {
				_, _ = io.WriteString(w, `{"images":[{"ref":"a","digest":"d","size":1,"layers":2,"in_use":3,"used":4}],"used":5,"limit":6}`)
				return
			}
			var p PullImage
			_ = json.NewDecoder(r.Body).Decode(&p)
			switch p.Ref {
			case "good":
				_, _ = io.WriteString(w, `{"done":1,"total":2}`+"\n"+`{"digest":"sha256:0"}`+"\n"+`{"digest":"never read"}`)
			case "bad":
				_, _ = io.WriteString(w, `{"failure":{"class":"user","reason":"image-not-found","message":"no"}}`)
			case "cut":
				_, _ = io.WriteString(w, `{"done":1}`+"\n")
			case "long":
				_, _ = io.WriteString(w, `{"digest":"`+strings.Repeat("x", maxProgress)+`"}`)
			default:
				w.WriteHeader(http.StatusNotFound)
			}
		case "/v1/images/prune":
			_, _ = io.WriteString(w, `{"freed":9}`)
		case "/v1/grants":
			var g PullGrant
			_ = json.NewDecoder(r.Body).Decode(&g)
			given = append(given, g)
			_, _ = io.WriteString(w, `{}`)
		}
	})
	ctx := t.Context()
	if s, err := c.Stats(ctx, "u-0-1"); err != nil || s != (Stats{At: 5, CPUMicros: 7, Memory: 8, Pids: 2, Disk: 3}) {
		t.Errorf("%+v %v", s, err)
	}
	if l, err := c.Images(ctx); err != nil || len(l.Images) != 1 || l.Images[0] != (Image{"a", "d", 1, 2, 3, 4}) || l.UsedBytes != 5 || l.Limit != 6 {
		t.Errorf("%+v %v", l, err)
	}
	for _, all := range []bool{false, true} {
		if p, err := c.PruneImages(ctx, all); err != nil || p.Freed != 9 {
			t.Errorf("%+v %v", p, err)
		}
	}
	if last := asked[len(asked)-2:]; last[0] != "POST /v1/images/prune" || last[1] != "POST /v1/images/prune?all=true" {
		t.Errorf("%q", last)
	}
	g := PullGrant{Ref: "r", Pull: "p", Authorization: "Bearer x", Insecure: true, Until: 5}
	if err := c.PutGrant(ctx, g); err != nil || len(given) != 1 || given[0] != g {
		t.Errorf("%+v %v", given, err)
	}
	pull := func(ref string) (all []PullProgress, err error) {
		for p, e := range c.PullImage(ctx, PullImage{Ref: ref}) {
			if e != nil {
				return all, e
			}
			all = append(all, p)
		}
		return all, nil
	}
	if all, err := pull("good"); err != nil || len(all) != 2 || all[0].Total != 2 || all[1].Digest != "sha256:0" {
		t.Errorf("%+v %v", all, err)
	}
	if all, err := pull("bad"); err != nil || len(all) != 1 || all[0].Failure.Reason != muster.ReasonImageNotFound {
		t.Errorf("%+v %v", all, err)
	}
	if all, err := pull("cut"); muster.KindOf(err) != muster.FaultUnavailable || len(all) != 1 || !strings.Contains(err.Error(), "cut") {
		t.Errorf("%+v %v", all, err)
	}
	if _, err := pull("long"); muster.KindOf(err) != muster.FaultUnavailable {
		t.Errorf("%v", err)
	}
	if _, err := pull("none"); muster.KindOf(err) != muster.FaultNotFound {
		t.Errorf("%v", err)
	}
	for range c.PullImage(ctx, PullImage{Ref: "good"}) {
		break // leaves early
	}
}

// An agent that dies while a tunnel is opened has the read fail, with a count below zero that readers panic at.
func TestHandedReadAfterAFailure(t *testing.T) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	_ = syscall.Close(pair[1])
	f := os.NewFile(uintptr(pair[0]), "agent")
	conn, err := net.FileConn(f)
	_ = f.Close()
	if err != nil {
		t.Fatal(err)
	}
	h := &handed{UnixConn: conn.(*net.UnixConn), fd: -1}
	_ = conn.Close()
	if n, err := h.Read(make([]byte, 8)); n != 0 || err == nil {
		t.Errorf("read %d, %v", n, err)
	}
}
