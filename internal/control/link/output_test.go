package link

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/blob"
	"github.com/musterhq/muster/internal/state"
)

func TestLargeOutputIsStored(t *testing.T) {
	inBubble(t, func(r *rig) {
		n := r.boot("n1", 32)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		const size = 20<<20 + 17
		r.submit("a", spec(fmt.Sprintf("flood %d ; warn oh ; true", size)))
		r.place("a", "n1")
		r.until("the end", time.Second, jobEnded("a"))
		r.until("stored", time.Second, outputIs("ua-0-1", state.OutputComplete))
		out := r.log.Latest().Alloc("ua-0-1").Output
		if out.Stdout.Size != size || out.Stdout.Start != 0 || out.BlobBytes != size || string(out.Stderr.Inline) != "oh\n" {
			t.Errorf("output %+v", out)
		}
		if got := r.stored("ua-0-1", "stdout"); len(got) != size || got[:16] != "0123456789abcde\n" {
			t.Errorf("%d bytes stored", len(got))
		}
		if j := r.log.Latest().JobByUID("ua"); j.OutputBytes != size {
			t.Errorf("the job counts %d bytes", j.OutputBytes)
		}
		time.Sleep(forgetAfter + time.Second)
		if held := n.Held(); len(held) > 0 {
			t.Errorf("not forgotten: %v", held)
		}
	})
}

func TestOutputIsShippedWhileItIsMade(t *testing.T) {
	inBubble(t, func(r *rig) {
		n := r.boot("n1", 32)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		r.submit("a", spec(strings.Repeat("flood 5000 ; sleep 7s ; ", 20)+"true"))
		r.place("a", "n1")
		time.Sleep(30 * time.Second)
		if got := len(r.stored("ua-0-1", "stdout")); got < 15000 || got > 25000 {
			t.Errorf("%d bytes stored after 30 s", got)
		}
		// Another leader goes on where this one was.
		r.restart()
		time.Sleep(30 * time.Second)
		n.Kill()
		r.restart()
		r.until("stored", 3*time.Minute, outputIs("ua-0-1", state.OutputComplete))
		out := r.log.Latest().Alloc("ua-0-1").Output
		if got := r.stored("ua-0-1", "stdout"); len(got) != 100000 || out.Stdout.Size != 100000 || out.BlobBytes != 100000 {
			t.Errorf("%d bytes stored, output %+v", len(got), out)
		}
		r.check()
	})
}

func TestSmallOutputThatWasShippedIsInline(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.boot("n1", 32)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		r.submit("a", spec("print one ; sleep 20s ; print two ; true"))
		r.place("a", "n1")
		time.Sleep(15 * time.Second)
		if got := r.stored("ua-0-1", "stdout"); got != "one\n" {
			t.Errorf("stored after 15 s: %q", got)
		}
		r.until("stored", 30*time.Second, outputIs("ua-0-1", state.OutputComplete))
		if out := r.log.Latest().Alloc("ua-0-1").Output; string(out.Stdout.Inline) != "one\ntwo\n" || out.BlobBytes != 0 || r.blobs.Usage() != 0 {
			t.Errorf("output %+v, %d bytes in blobs", out, r.blobs.Usage())
		}
	})
}

func TestOutputLimit(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.boot("n1", 32)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		// 100 times 10,000 bytes in 200 s, of which 100,000 are kept; then a burst that the node itself cuts.
		r.submit("a", spec(strings.Repeat("flood 10000 ; sleep 2s ; ", 100)+"flood 300000 ; true", func(s *api.JobSpec) { s.OutputLimit = 100_000 }))
		r.place("a", "n1")
		time.Sleep(3 * time.Minute)
		if got := len(r.stored("ua-0-1", "stdout")); got < 100_000 || got > 250_000 {
			t.Errorf("%d bytes stored, the limit is 100,000", got)
		}
		r.until("stored", 5*time.Minute, outputIs("ua-0-1", state.OutputComplete))
		out := r.log.Latest().Alloc("ua-0-1").Output
		if out.Stdout.Size != 1_300_000 || out.Stdout.Start != 1_200_000 || out.BlobBytes != 100_000 || len(r.stored("ua-0-1", "stdout")) != 100_000 {
			t.Errorf("output %+v, %d bytes stored", out, len(r.stored("ua-0-1", "stdout")))
		}
	})
}

func TestBlobStoreDown(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.boot("n1", 32)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		r.blobs.Fail(errors.New("no blob store"))
		r.submit("a", spec("flood 5000 ; true", count(20)))
		r.place("a", "n1")
		r.until("allocations end all the same", time.Second, jobEnded("a"))
		time.Sleep(10 * time.Minute)
		r.blobs.Fail(nil)
		for _, id := range []muster.AllocID{"ua-0-1", "ua-19-1"} {
			r.until("stored", 2*time.Minute, outputIs(id, state.OutputComplete))
		}
		if faults := r.link.Stats().ShipFaults; faults == 0 || faults > 20*25 {
			t.Errorf("%d faults in ten minutes", faults)
		}
	})
}

// fullWhile is a disk that is nearly full while it is.
func fullWhile(full func() bool) func() error {
	return func() error {
		if full() {
			return errors.New("too little is free")
		}
		return nil
	}
}

func TestDiskTight(t *testing.T) {
	inBubble(t, func(r *rig) {
		var tight atomic.Bool
		tight.Store(true)
		r.config.DiskTight = fullWhile(tight.Load)
		r.boot("n1", 32)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		r.submit("a", spec("flood 5000 ; true"))
		r.place("a", "n1")
		r.until("the end", time.Second, jobEnded("a"))
		time.Sleep(time.Minute)
		if r.blobs.Usage() != 0 {
			t.Error("shipped although the disk is nearly full")
		}
		tight.Store(false)
		r.until("stored", 2*time.Minute, outputIs("ua-0-1", state.OutputComplete))
	})
}

func outputs(paths ...string) func(*api.JobSpec) {
	return func(s *api.JobSpec) {
		for _, p := range paths {
			s.Outputs = append(s.Outputs, api.OutputSpec{Path: p})
		}
	}
}

func TestDeclaredOutputs(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.boot("n1", 32)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		r.blobs.Fail(errors.New("no blob store"))
		r.submit("a", spec("make x one ; make y two ; print made ; true", outputs("x", "y")))
		r.place("a", "n1")
		time.Sleep(time.Minute)
		if a := r.log.Latest().Alloc("ua-0-1"); a.Status != muster.AllocRunning {
			t.Fatalf("it is %s %s before its outputs are stored", a.Status, a.Outcome)
		}
		if n, why := r.link.Unstored("ua"); n != 1 || why == nil || !strings.Contains(why.Error(), "no blob store") {
			t.Errorf("%d unstored: %v", n, why)
		}
		r.restart()
		time.Sleep(time.Second)
		r.blobs.Fail(nil)
		r.until("the end", time.Minute, jobEnded("a"))
		// The leader before may have shipped some of it: this one looks.
		r.until("stored", time.Minute, outputIs("ua-0-1", state.OutputComplete))
		a := r.log.Latest().Alloc("ua-0-1")
		if a.Outcome != muster.OutcomeSucceeded || len(a.Output.Files) != 2 || a.Output.Files[1].Path != "y" || a.Output.BlobBytes != 6 || a.Output.Stage != state.OutputComplete {
			t.Errorf("outcome %s, output %+v", a.Outcome, a.Output)
		}
		in, err := r.blobs.Open(context.Background(), blob.OutputKey("default", "ua", "ua-0-1", 1), 0)
		if err != nil {
			t.Fatal(err)
		}
		if data, _ := io.ReadAll(in); string(data) != "two" {
			t.Errorf("stored %q", data)
		}

		r.submit("b", spec("true", outputs("x")))
		r.place("b", "n1")
		r.until("the end", time.Second, jobEnded("b"))
		if f := r.log.Latest().Alloc("ub-0-1").Failure; f == nil || f.Reason != muster.ReasonOutputMissing {
			t.Errorf("failure %v", f)
		}
	})
}

func TestDeclaredOutputsWithLargeOutput(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.boot("n1", 8)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		r.submit("a", spec("make x one ; flood 5000 ; true", outputs("x")))
		r.place("a", "n1")
		r.until("the end", time.Second, jobEnded("a"))
		r.until("stored", time.Second, outputIs("ua-0-1", state.OutputComplete))
		out := r.log.Latest().Alloc("ua-0-1").Output
		if len(out.Files) != 1 || out.Stdout.Size != 5000 || out.BlobBytes != 5003 || r.log.Latest().JobByUID("ua").OutputBytes != 5003 {
			t.Errorf("output %+v, the job counts %d", out, r.log.Latest().JobByUID("ua").OutputBytes)
		}
	})
}

func TestDeclaredOutputsNeverStored(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.boot("n1", 32)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		r.blobs.Fail(errors.New("no blob store"))
		r.submit("a", spec("make x one ; true", outputs("x"), func(s *api.JobSpec) { s.Restart.GiveUp = api.Duration(time.Minute) }))
		r.place("a", "n1")
		r.until("the end", 11*time.Minute, jobEnded("a"))
		f := r.log.Latest().Alloc("ua-0-1").Failure
		if f == nil || f.Class != muster.FailureOutside || f.Reason != muster.ReasonOutputNotStored || !strings.Contains(f.Message, "no blob store") {
			t.Errorf("failure %v", f)
		}
		// Stopped while it waits.
		r.submit("b", spec("make x one ; true", outputs("x")))
		r.place("b", "n1")
		time.Sleep(10 * time.Second)
		r.must(&state.JobStopped{Key: muster.JobKey{Namespace: "default", Name: "b"}})
		r.until("the end", time.Minute, jobEnded("b"))
		if a := r.log.Latest().Alloc("ub-0-1"); a.Outcome != muster.OutcomeStopped {
			t.Errorf("outcome %s", a.Outcome)
		}
	})
}

func TestInputsArePushed(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.boot("n1", 32)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		data := bytes.Repeat([]byte("input "), 50)
		sum := sha256.Sum256(data)
		digest := "sha256:" + hex.EncodeToString(sum[:])
		r.submit("a", spec("cat in ; true", func(s *api.JobSpec) {
			inline := "inline "
			s.Inputs = []api.InputSpec{{Path: "in", Digest: digest}, {Path: "small", Content: &inline, Mode: "0755"}}
		}))
		r.place("a", "n1")
		time.Sleep(20 * time.Second)
		if a := r.log.Latest().Alloc("ua-0-1"); a.Status != muster.AllocStarting {
			t.Errorf("it is %s without its input", a.Status)
		}
		if _, err := r.blobs.Put(context.Background(), blob.UploadKey(digest), bytes.NewReader(data)); err != nil {
			t.Fatal(err)
		}
		r.until("the end", 20*time.Second, jobEnded("a"))
		if a := r.log.Latest().Alloc("ua-0-1"); string(a.Output.Stdout.Inline) != string(data) {
			t.Errorf("it read %q", a.Output.Stdout.Inline)
		}
	})
}

func TestOpenOutputFollows(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.boot("n1", 32)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		r.submit("a", spec("print one ; sleep 1m ; print two ; true"))
		r.place("a", "n1")
		r.until("running", time.Second, allocIs("ua-0-1", muster.AllocRunning))
		in, start, err := r.link.OpenOutput(context.Background(), r.log.Latest().Alloc("ua-0-1"), "stdout", 1, true)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = in.Close() }()
		if data, err := io.ReadAll(in); err != nil || string(data) != "ne\ntwo\n" || start != 1 {
			t.Errorf("followed %q from %d: %v", data, start, err)
		}
		r.until("the end", time.Second, jobEnded("a")) // a node that still has work keeps its link
		r.must(&state.NodeTerminating{ID: "n1"})
		synctest.Wait()
		if _, _, err := r.link.OpenOutput(context.Background(), r.log.Latest().Alloc("ua-0-1"), "stdout", 0, false); !muster.IsKind(err, muster.FaultUnavailable) {
			t.Errorf("a node without a link: %v", err)
		}
	})
}

// A node that is destroyed at once: what was shipped is kept, the rest is said to be missing.
func TestOutputOfADestroyedNode(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.boot("n1", 32)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		r.submit("a", spec("flood 5000 ; sleep 12s ; flood 5000 ; true"))
		r.place("a", "n1")
		time.Sleep(11 * time.Second)
		r.blobs.Fail(errors.New("no blob store"))
		r.until("the end", 10*time.Second, jobEnded("a"))
		r.must(&state.NodeTerminating{ID: "n1", Reason: "destroyed by an operator"})
		r.until("given up", time.Second, outputIs("ua-0-1", state.OutputIncomplete))
		out := r.log.Latest().Alloc("ua-0-1").Output
		if out.Stdout.Size != 5000 || out.BlobBytes != 5000 || !strings.Contains(out.Why, "destroyed by an operator") {
			t.Errorf("output %+v", out)
		}
	})
}
