package agent

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

func TestOutputIsReadWhileItIsWrittenAndAfter(t *testing.T) {
	rt := newPlayed()
	r := newRig(t, rt, "")
	r.must(set(run("u-0-1", "hold")))
	r.until("u-0-1", muster.AllocRunning)
	b := rt.box("u-0-1")
	out := b.out[wire.Stdout]
	out.write([]byte("hello "))
	now, err := r.client.Stream(t.Context(), "u-0-1", wire.Stdout, 0, false)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(now); err != nil || string(got) != "hello " || now.Final {
		t.Errorf("%q %v, final %v", got, err, now.Final)
	}
	_ = now.Close()
	follow, err := r.client.Stream(t.Context(), "u-0-1", wire.Stdout, 2, true)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = follow.Close() }()
	buf := make([]byte, 4)
	if _, err := io.ReadFull(follow, buf); err != nil || string(buf) != "llo " {
		t.Fatalf("%q %v", buf, err)
	}
	began := time.Now()
	out.write([]byte("live"))
	if _, err := io.ReadFull(follow, buf); err != nil || string(buf) != "live" {
		t.Fatalf("%q %v", buf, err)
	}
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("took %v", took)
	}
	out.write([]byte(" last words"))
	b.end(contract.Result{ExitCode: 0})
	if rest, err := io.ReadAll(follow); err != nil || string(rest) != " last words" {
		t.Errorf("%q %v", rest, err)
	}
	r.until("u-0-1", muster.AllocEnded)
	r.eventually("the agent lets go of the ended sandbox", func() bool {
		rt.mu.Lock()
		defer rt.mu.Unlock()
		return b.closed == 1
	})
	for _, followed := range []bool{false, true} {
		after, err := r.client.Stream(t.Context(), "u-0-1", wire.Stdout, 0, followed)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(after); err != nil || string(got) != "hello live last words" || !after.Final {
			t.Errorf("%q %v, final %v", got, err, after.Final)
		}
		_ = after.Close()
	}
}

func TestOutputThatWasDropped(t *testing.T) {
	rt := newPlayed()
	r := newRig(t, rt, "")
	r.must(set(run("u-0-1", "hold")))
	r.until("u-0-1", muster.AllocRunning)
	out := rt.box("u-0-1").out[wire.Stderr]
	out.limit = 10
	out.write([]byte("0123456789abcde"))
	got, err := r.client.Stream(t.Context(), "u-0-1", wire.Stderr, 2, false)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = got.Close() }()
	if b, _ := io.ReadAll(got); string(b) != "56789abcde" || got.Start != 5 {
		t.Errorf("%q from %d", b, got.Start)
	}
	// A follower that was too slow is cut off, and learns where it is when it comes again.
	follow, err := r.client.Stream(t.Context(), "u-0-1", wire.Stderr, 15, true)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = follow.Close() }()
	out.write([]byte("this is more than it keeps"))
	if b, err := io.ReadAll(follow); err == nil {
		t.Errorf("%q as if nothing were missing", b)
	}
	rt.box("u-0-1").end(contract.Result{})
	if end := r.until("u-0-1", muster.AllocEnded); end.Stderr.Size != 41 || end.Stderr.Start != 31 || end.Stderr.Inline != nil {
		t.Errorf("%+v", end.Stderr)
	}
}

func TestOutputOfWhatNeverRan(t *testing.T) {
	r := newRig(t, newPlayed(), "")
	al := run("u-0-1", "exit", "0")
	al.Desired = muster.AllocStop
	r.must(set(al, withInputs("u-1-1", wire.Input{Path: "a", Digest: digestOf(nil)}), run("u-2-1", "refuse")))
	r.until("u-0-1", muster.AllocEnded)
	r.until("u-1-1", muster.AllocStarting)
	r.until("u-2-1", muster.AllocEnded)
	for _, id := range []muster.AllocID{"u-0-1", "u-1-1", "u-2-1"} {
		got, err := r.client.Stream(t.Context(), id, wire.Stdout, 0, false)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(got); err != nil || len(b) != 0 || got.Final != (id != "u-1-1") {
			t.Errorf("%s: %q %v, final %v", id, b, err, got.Final)
		}
		_ = got.Close()
	}
	// A follower waits for what has not started yet.
	ended := make(chan error, 1)
	go func() {
		got, err := r.client.Stream(t.Context(), "u-1-1", wire.Stdout, 0, true)
		if err == nil {
			_, err = io.ReadAll(got)
			_ = got.Close()
		}
		ended <- err
	}()
	if err := r.client.PutInput(t.Context(), digestOf(nil), strings.NewReader("")); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	for _, bad := range []struct {
		id     muster.AllocID
		stream string
		offset int64
		want   muster.FaultKind
	}{{"u-9-1", wire.Stdout, 0, muster.FaultNotFound}, {"u-0-1", "stdin", 0, muster.FaultNotFound}, {"u-0-1", wire.Stdout, -1, muster.FaultInvalid}} {
		if _, err := r.client.Stream(t.Context(), bad.id, bad.stream, bad.offset, false); muster.KindOf(err) != bad.want {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

func TestSlowReaderHoldsNothingUp(t *testing.T) {
	rt := newPlayed()
	r := newRig(t, rt, "")
	r.must(set(run("u-0-1", "hold")))
	r.until("u-0-1", muster.AllocRunning)
	rt.box("u-0-1").out[wire.Stdout].write(bytes.Repeat([]byte("x"), 8<<20))
	slow, err := r.client.Stream(t.Context(), "u-0-1", wire.Stdout, 0, true)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = slow.Close() }() // never read
	rt.box("u-0-1").end(contract.Result{})
	r.must(set(run("u-1-1", "exit", "0")))
	r.until("u-0-1", muster.AllocEnded)
	r.until("u-1-1", muster.AllocEnded)
	fast, err := r.client.Stream(t.Context(), "u-0-1", wire.Stdout, 0, true)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = fast.Close() }()
	if n, err := io.Copy(io.Discard, fast); err != nil || n != 8<<20 {
		t.Errorf("%d %v", n, err)
	}
}
