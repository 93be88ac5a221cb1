package isolation

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/cgroup"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/oci"
)

// evilNode is a node whose init is the probe: an honest one, unless a sandbox says otherwise.
func evilNode(t *testing.T, program string, base int) *node {
	n := newNode(t, program, base, initPath) // skips where there are no containers
	parent := "muster-test/evil-" + n.uid
	t.Cleanup(func() {
		if err := cgroup.RemoveParent(parent); err != nil {
			t.Error(err)
		}
	})
	n.runtime = n.evilRuntime(parent, 15*time.Second)
	// What is only waited for is shorter, but long enough for an init that does nothing wrong.
	n.hasty = n.evilRuntime(parent, 10*time.Second)
	return n
}

// evilRuntime is one whose init is the probe. It gives a start this long, and an end a second.
func (n *node) evilRuntime(parent string, startLimit time.Duration) *oci.Runtime {
	n.Helper()
	r, err := oci.New(oci.Config{
		InitPath: probePath, CgroupParent: parent, Program: n.program, IDBase: n.base,
		StartLimit: startLimit, EndLimit: time.Second, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		n.Fatal(err)
	}
	if err := r.Check(n.Context()); err != nil {
		n.Fatalf("the probe does not do as an init: %v", err)
	}
	return r
}

// An init that was taken over can lie about its own sandbox. It must not get further.
func TestInitThatWasTakenOver(t *testing.T) {
	type expect struct {
		// starts: the start is believed.
		starts bool
		// stop: it would go on for ever.
		stop bool
	}
	deeds := map[string]expect{
		"says nothing": {}, "is gone at once": {}, "answers a huge frame": {}, "answers garbage": {}, "claims an old failure": {},
		"lies about the result": {starts: true}, "lies about times": {starts: true}, "floods the record": {starts: true}, "swaps its files": {starts: true},
		"makes many files": {starts: true}, "lies on the socket": {starts: true, stop: true}, "is deaf": {starts: true, stop: true},
	}
	everywhere(t, func(outer *node) {
		n := evilNode(outer.T, outer.program, outer.base)
		unharmed := n.bystander()
		n.T.Run("deeds", func(t *testing.T) {
			for deed, want := range deeds {
				t.Run(deed, func(t *testing.T) {
					t.Parallel() // most of the time is patience
					inner := *n
					inner.T = t
					if deed == "says nothing" {
						inner.runtime = n.hasty // it takes as long as a start may take
					}
					inner.suffer(deed, want.starts, want.stop)
				})
			}
		})
		unharmed()
	})
}

func (n *node) suffer(deed string, starts, stop bool) {
	n.Helper()
	c := n.config("true")
	c.Env = append(c.Env, n.facts()...)
	c.Env = append(c.Env, "PROBE_EVIL="+deed)
	before := time.Now()
	s, err := n.runtime.Start(n.Context(), c)
	n.Cleanup(func() {
		if err := n.runtime.Remove(context.Background(), c.Dir); err != nil {
			n.Errorf("remove: %v", err)
		}
	})
	if !starts {
		var failure *muster.Failure
		if !errors.As(err, &failure) {
			n.Fatalf("start: %v", err)
		}
		if len(failure.Message) > 8192 {
			n.Errorf("its message has %d bytes", len(failure.Message))
		}
		return
	}
	if err != nil {
		n.Fatalf("start: %v", err)
	}
	n.Cleanup(func() { _ = s.Close() })
	if stop {
		n.ask(s)
		s.Stop(100 * time.Millisecond)
	}
	result := n.wait(s)
	if result.Started.Before(before.Add(-time.Second)) || result.Ended.After(time.Now().Add(time.Second)) || s.Started().After(time.Now().Add(time.Second)) {
		n.Errorf("times %v to %v, began after %v", result.Started, result.Ended, before)
	}
	var was, is runtime.MemStats
	runtime.ReadMemStats(&was)
	for _, stream := range []string{"stdout", "stderr"} {
		n.checkStream(s, stream)
	}
	runtime.ReadMemStats(&is)
	if grown := is.TotalAlloc - was.TotalAlloc; grown > 512<<20 {
		n.Errorf("reading it took %d MiB", grown>>20)
	}
	// A later agent sees the same.
	again, err := n.runtime.Attach(n.Context(), c.Dir)
	if err != nil {
		n.Fatalf("attach: %v", err)
	}
	n.wait(again)
	_ = again.Close()
	if b, err := os.ReadFile(n.secret); err != nil || string(b) != n.token {
		n.Errorf("a file of the node was changed: %q, %v", b, err)
	}
}

// ask asks an init that never stops answering: who asks is not to wait or to take it all.
func (n *node) ask(s contract.Sandbox) {
	n.Helper()
	conn, err := contract.Connect(n.Context(), s)
	if err != nil {
		n.Fatalf("connect: %v", err)
	}
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	_, _ = conn.Write([]byte("\x00\x00\x00\x01\x02"))
	_, _ = io.ReadFull(conn, make([]byte, 1024))
	_ = conn.Close()
}

// checkStream reads a little of a stream at several places: it ends, and nothing of the node's is in it.
func (n *node) checkStream(s contract.Sandbox, stream string) {
	n.Helper()
	log := s.Output(stream)
	start, end, err := log.Bounds()
	if err != nil {
		n.Logf("%s: bounds: %v", stream, err)
	}
	buf := make([]byte, 4096)
	for _, at := range []int64{start, 0, 1, end - 1, end, end + 1, -1} {
		got, _ := log.ReadAt(buf, at)
		if strings.Contains(string(buf[:got]), n.token) {
			n.Errorf("%s at %d shows a file of the node", stream, at)
		}
	}
}

// With all of init's capabilities and descriptors there is no way to the node.
func TestInitsDescriptorsLeadNowhere(t *testing.T) {
	everywhere(t, func(outer *node) {
		n := evilNode(outer.T, outer.program, outer.base)
		c := n.config("true")
		c.Env = append(c.Env, n.facts()...)
		c.Env = append(c.Env, "PROBE_EVIL=uses its descriptors")
		s := n.start(c)
		n.wait(s)
		check(n.T, []string{"evil-init-up", "evil-init-handles", "evil-init-device", "evil-init-run", "evil-init-others"}, output(n, s, "stdout"), "")
	})
}
