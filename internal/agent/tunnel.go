package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"syscall"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/tunnel"
	"github.com/musterhq/muster/internal/wait"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// switching is the answer that makes a connection a tunnel; kills is the sandbox's count of
// out-of-memory kills, more another header line or none.
func switching(kills int64, more string) []byte {
	return fmt.Appendf(nil, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n%s: %d\r\n%s\r\n", wire.UpgradeInit, wire.HeaderOOMKills, kills, more)
}

// serveTunnel connects the client to the init of a sandbox. The agent neither reads nor believes
// what is said there: bytes go both ways until either side ends. The request's body goes to init
// first. A server on this machine is handed the connection itself if it asks for that: the way
// through the agent, there and back, takes as long as what init does.
func (a *Agent) serveTunnel(w http.ResponseWriter, r *http.Request) {
	al := a.lookup(w, r)
	if al == nil {
		return
	}
	if r.Header.Get("Upgrade") != wire.UpgradeInit {
		w.Header().Set("Upgrade", wire.UpgradeInit)
		fail(w, http.StatusUpgradeRequired, "ask with Connection: Upgrade and Upgrade: "+wire.UpgradeInit)
		return
	}
	b := a.holdRunning(w, al)
	if b == nil {
		return
	}
	defer al.drop(b)
	ctx := r.Context()
	defer al.wake(ctx, b)()
	inside, err := contract.Connect(ctx, b.sandbox)
	if errors.Is(err, contract.ErrNoSandbox) {
		fail(w, http.StatusGone, fmt.Sprintf("allocation %s: its sandbox has ended", al.id))
		return
	}
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT) {
		a.notListening(w, al)
		return
	}
	if err != nil {
		a.answerOr(w, nil, fmt.Errorf("allocation %s: %w", al.id, err))
		return
	}
	defer func() { _ = inside.Close() }()
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		a.answerOr(w, nil, err)
		return
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Time{})
	// A client that starts an execution by this tunnel compares later counts with this one, so it
	// is taken before anything goes in.
	kills := contract.OOMKills(b.sandbox)
	// What came with the request goes first: init works on it while the rest is prepared. Where the
	// connection is handed over the whole body has to go in before, as the agent sends nothing
	// afterwards.
	give := r.Header.Get(wire.HeaderHandOver) != "" && r.ContentLength >= 0
	size := int64(0)
	if give {
		size = r.ContentLength
	}
	early, _ := buffered.Peek(buffered.Reader.Buffered())
	rest, whole, err := tunnel.Forward(conn, early, inside, size)
	if err != nil {
		a.log.Debug("tunnel", "alloc", al.id, "error", err) // init may have said why: that is carried
	}
	if give && whole && tunnel.HandOver(conn, inside, switching(kills, wire.HeaderHandOver+": socket\r\n")) {
		_ = inside.Close()
		tunnel.AwaitUnused(ctx, conn)
		return
	}
	if _, err := conn.Write(switching(kills, "")); err != nil {
		return
	}
	// The rest is read from the connection itself: were it read through the buffer of package http,
	// an end would end the request and its context.
	tunnel.Carry(ctx, conn, io.MultiReader(bytes.NewReader(rest), conn), inside)
}

// notListening answers for an init that takes no connection. Most often it is about to end, and the
// agent has not seen that yet.
func (a *Agent) notListening(w http.ResponseWriter, al *allocation) {
	if now := al.progress(); now.stopping || now.ended {
		fail(w, http.StatusGone, fmt.Sprintf("allocation %s is being stopped", al.id))
		return
	}
	fail(w, http.StatusServiceUnavailable, fmt.Sprintf("allocation %s: its init does not listen; its sandbox may be about to end", al.id))
}

// holdRunning is a use of the allocation's running sandbox. If there is none it is nil, and the
// request is answered.
func (a *Agent) holdRunning(w http.ResponseWriter, al *allocation) *box {
	b := al.hold()
	switch {
	case b == nil && wait.Closed(al.done):
		fail(w, http.StatusGone, fmt.Sprintf("allocation %s has ended", al.id))
	case b == nil:
		fail(w, http.StatusConflict, fmt.Sprintf("allocation %s does not run yet", al.id))
	case wait.Closed(b.sandbox.Done()):
		al.drop(b)
		fail(w, http.StatusGone, fmt.Sprintf("allocation %s has ended", al.id))
		return nil
	}
	return b
}

// serveStats measures one sandbox now, and not as of the last heartbeat.
func (a *Agent) serveStats(w http.ResponseWriter, r *http.Request) {
	al := a.lookup(w, r)
	if al == nil {
		return
	}
	b := a.holdRunning(w, al)
	if b == nil {
		return
	}
	defer al.drop(b)
	u := b.sandbox.Usage()
	answer(w, http.StatusOK, wire.Stats{
		At: muster.At(time.Now()), CPUMicros: u.CPU.Microseconds(), Memory: u.Memory, Pids: u.Pids, PidsMax: u.PidsMax, Disk: u.Disk, DiskMax: u.DiskMax, OOMKills: u.OOMKills,
	})
}
