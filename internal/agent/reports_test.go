package agent

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/destinations"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// bubble runs f with an agent in a bubble: its time is the bubble's.
func bubble(t *testing.T, rt *played, f func(t *testing.T, r *rig)) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		r := newRig(t, rt, dir, func(c *Config) { c.Listener = p })
		f(t, r)
		r.stop()
	})
}

// stream reads reports into a channel until stop is called.
func (r *rig) stream() (<-chan wire.Report, func()) {
	ctx, cancel := context.WithCancel(r.t.Context())
	reports := make(chan wire.Report, 1000)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for report, err := range r.client.Reports(ctx) {
			if err != nil {
				return
			}
			reports <- report
		}
	}()
	return reports, func() { cancel(); <-done }
}

func TestHeartbeats(t *testing.T) {
	rt := newPlayed()
	bubble(t, rt, func(t *testing.T, r *rig) {
		r.must(set(run("u-0-1", "hold"), run("u-1-1", "hold")))
		for _, id := range []muster.AllocID{"u-0-1", "u-1-1"} {
			r.until(id, muster.AllocRunning)
			rt.box(id).usage = contract.Usage{CPU: 3 * time.Second, Memory: 5 * muster.MiB}
		}
		rt.box("u-0-1").out[wire.Stdout].write([]byte("12345"))
		reports, done := r.stream()
		first := <-reports
		if !first.Whole || len(first.Allocs) != 2 || first.Used == nil || first.FreeDisk == 0 {
			t.Errorf("first %+v", first)
		}
		seq, last := first.Seq, time.Now()
		for i := range 4 {
			b := <-reports
			if b.Seq <= seq || b.Run != first.Run || b.Whole {
				t.Errorf("%+v after %d", b, seq)
			}
			if gap := time.Since(last); gap > wire.HeartbeatMillis*time.Millisecond {
				t.Errorf("silent for %v", gap)
			}
			if b.Used == nil || b.Used.CPUMicros != 6_000_000 || b.Used.Memory != 10*muster.MiB || b.FreeDisk == 0 {
				t.Errorf("heartbeat %+v", b)
			}
			// What was measured travels once, not with each heartbeat.
			if want := 2 * (1 - min(i, 1)); len(b.Allocs) != want {
				t.Errorf("heartbeat %d carries %d allocations, want %d", i, len(b.Allocs), want)
			} else if want > 0 && (b.Allocs[0].Stdout.Size != 5 || b.Allocs[0].Usage.CPUMicros != 3_000_000) {
				t.Errorf("%+v", b.Allocs[0])
			}
			seq, last = b.Seq, time.Now()
		}
		done()
		for _, id := range []muster.AllocID{"u-0-1", "u-1-1"} {
			rt.box(id).end(contract.Result{})
		}
		synctest.Wait()
	})
}

func TestChangesAreToldAtOnceAndTogether(t *testing.T) {
	rt := newPlayed()
	bubble(t, rt, func(t *testing.T, r *rig) {
		reports, done := r.stream()
		<-reports
		time.Sleep(time.Second)
		began := time.Now()
		r.must(set(run("u-0-1", "hold")))
		status := muster.AllocStatus("")
		for status != muster.AllocRunning {
			status = (<-reports).Allocs[0].Status
		}
		if took := time.Since(began); took > 2*reportPace {
			t.Errorf("running is told after %v", took)
		}
		time.Sleep(time.Second)
		var many []wire.DesiredAlloc
		for i := range 100 {
			many = append(many, run(muster.NewAllocID("v", i, 1), "exit", "0"))
		}
		r.must(set(many...))
		ended, n := map[muster.AllocID]bool{}, 0
		for len(ended) < 100 {
			b := <-reports
			if len(b.Allocs) > 0 {
				n++
			}
			for _, al := range b.Allocs {
				if al.Status == muster.AllocEnded {
					ended[al.ID] = true
				}
			}
		}
		if n > 50 {
			t.Errorf("100 allocations took %d reports", n)
		}
		done()
		rt.box("u-0-1").end(contract.Result{})
		synctest.Wait()
	})
}

// A notice of the cloud is told at once, and stays while checks of the node find nothing.
func TestNoticeOfTheCloudIsToldAtOnce(t *testing.T) {
	bubble(t, newPlayed(), func(t *testing.T, r *rig) {
		reports, done := r.stream()
		<-reports
		time.Sleep(beatEvery / 3)
		began := time.Now()
		taken := wire.Notice{Kind: wire.NoticeTaken, At: 1}
		r.agent.node.reporter.cloudNoticed(taken)
		if b := <-reports; b.Condition == nil || b.Condition.Notice != taken || time.Since(began) > 2*reportPace {
			t.Errorf("after %v: %+v", time.Since(began), b.Condition)
		}
		r.agent.node.notice()
		if b := <-reports; b.Condition == nil || b.Condition.Notice != taken {
			t.Errorf("in a heartbeat: %+v", b.Condition)
		}
		done()
	})
}

func TestReaderThatTakesNothing(t *testing.T) {
	rt := newPlayed()
	bubble(t, rt, func(t *testing.T, r *rig) {
		conn, err := r.agent.cfg.Listener.(*pipes).dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprint(conn, "GET /v1/reports HTTP/1.1\r\nHost: agent\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		// It reads nothing. Allocations come, end and are forgotten: nothing piles up for it.
		for i := range 50 {
			id := muster.NewAllocID("u", i, 1)
			r.must(set(run(id, "exit", "0")))
			r.until(id, muster.AllocEnded)
			r.must(wire.Desired{Forget: []muster.AllocID{id}})
		}
		synctest.Wait() // the streams that until read have ended for the agent too
		r.agent.node.reporter.mu.Lock()
		for rd := range r.agent.node.reporter.readers {
			if len(rd.dirty) != 0 {
				t.Errorf("%d ids are kept", len(rd.dirty))
			}
		}
		readers := len(r.agent.node.reporter.readers)
		r.agent.node.reporter.mu.Unlock()
		if readers != 1 {
			t.Errorf("%d readers", readers)
		}
		time.Sleep(writeTimeout + time.Second)
		synctest.Wait()
		r.agent.node.reporter.mu.Lock()
		if len(r.agent.node.reporter.readers) != 0 {
			t.Error("it is still waited for")
		}
		r.agent.node.reporter.mu.Unlock()
		_ = conn.Close()
	})
}

func TestSilentAgentIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		c := wire.NewClient(p.dial)
		go func() {
			conn, _ := p.Accept()
			buf := make([]byte, 4096)
			_, _ = conn.Read(buf)
			_, _ = conn.Write([]byte("HTTP/1.1 200 OK\r\n\r\n{\"boot\":\"b\",\"seq\":1,\"whole\":true}\n"))
			_, _ = conn.Read(buf) // until the client goes
			_ = conn.Close()
		}()
		began := time.Now()
		var last error
		n := 0
		for _, err := range c.Reports(t.Context()) {
			n++
			last = err
		}
		if n != 2 || muster.KindOf(last) != muster.FaultUnavailable || !strings.Contains(last.Error(), "too long") {
			t.Errorf("%d reports, then %v", n-1, last)
		}
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("noticed after %v", took)
		}
		c.Close()
	})
}

func TestProtocol(t *testing.T) {
	r := newRig(t, newPlayed(), "")
	h, err := r.client.Hello(t.Context())
	if err != nil || h.Node != "n1" || h.Protocol != wire.Protocol || h.Version != "v-test" || h.Run == "" || h.Pid == 0 ||
		h.Capacity.CPU != 2000 || len(h.Runtimes) != 1 || h.Fence != (wire.Fence{}) {
		t.Errorf("%+v %v", h, err)
	}
}

// TestWordsOfOthersAreBounded: what the server of a URL says is cut before it is told, as a report that is too large
// takes the whole node out of contact.
func TestWordsOfOthersAreBounded(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	long := strings.Repeat("A", 7<<20)
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				req, err := http.ReadRequest(bufio.NewReader(conn))
				if err != nil {
					return
				}
				switch req.URL.Path {
				case "/status":
					_, _ = io.WriteString(conn, "HTTP/1.1 404 <"+long[:destinations.MaxHeader/2]+"\r\nContent-Length: 0\r\n\r\n")
				case "/scheme":
					_, _ = io.WriteString(conn, "HTTP/1.1 302 Found\r\nLocation: "+long[:destinations.MaxHeader/2]+"://x\r\nContent-Length: 0\r\n\r\n")
				case "/longer":
					_, _ = io.WriteString(conn, "HTTP/1.1 404 "+long+"\r\nContent-Length: 0\r\n\r\n")
				}
			}()
		}
	}()
	rt := newPlayed()
	r := newRig(t, rt, "", func(c *Config) { c.Destinations = destinations.Allowed{netip.MustParsePrefix("127.0.0.1/32")} })
	of := func(id muster.AllocID, path string) wire.DesiredAlloc {
		al := withInputs(id, wire.Input{Path: "a", Digest: digestOf([]byte(path)), URL: "http://" + ln.Addr().String() + path})
		al.Spec.GiveUpInputMillis = 100
		return al
	}
	r.must(set(of("u-0-1", "/status"), of("u-1-1", "/scheme"), of("u-2-1", "/longer")))
	r.eventually("all have failed", func() bool {
		failed := 0
		for _, al := range r.whole().Allocs {
			if al.Failure != nil {
				failed++
				if n := len(al.Failure.Message); n > contract.MaxMessage+utf8.UTFMax {
					t.Fatalf("%s: %d bytes", al.ID, n)
				}
			}
		}
		return failed == 3
	})
}

// TestReportOfAnAllocationIsBounded holds also for what was kept by an earlier version, or came out of a sandbox.
func TestReportOfAnAllocationIsBounded(t *testing.T) {
	const each = 16 << 10 // what servers grant a report for each allocation
	inline := bytes.Repeat([]byte{0xff}, wire.InlineLimit)
	for _, char := range []string{"A", "<", "\x00", "\xff", "\u2028"} {
		long := strings.Repeat(char, 1<<20)
		r := &wire.AllocReport{ID: "u-0-1", Status: muster.AllocEnded, Outcome: muster.OutcomeFailed, Signal: long, Detail: long, Image: long,
			Failure: &muster.Failure{Class: muster.FailureClass(long), Reason: muster.Reason(long), Message: long},
			Stdout:  wire.StreamReport{Inline: inline}, Stderr: wire.StreamReport{Inline: inline}}
		var b bytes.Buffer
		w := bufio.NewWriter(&b)
		if err := errors.Join(writeReport(w, wire.Report{}, []*wire.AllocReport{r}), w.Flush()); err != nil || b.Len() > each {
			t.Errorf("%q: %d bytes, %v", char, b.Len(), err)
		}
		if len(r.Detail) != len(long) {
			t.Error("what is kept was changed")
		}
	}
}
