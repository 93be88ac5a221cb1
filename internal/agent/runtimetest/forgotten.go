package runtimetest

import (
	"os"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/initbox"
)

// Forgotten checks that sandboxes whose directories somebody deleted are ended, with what they have started, and no
// others. The runtime must have no other sandboxes.
func Forgotten(t *testing.T, s Suite) {
	r := newRig(t, s)
	p := program{sh: `(setsid sleep 1000 &) ; echo begun; sleep 1000`}
	known, deleted := r.config(p), r.config(p)
	for _, c := range []contract.SandboxConfig{known, deleted} {
		r.untilPrinted(r.start(c), "begun")
	}
	ran, err := initbox.Members(deleted.Dir)
	if err != nil || len(ran) < 3 {
		t.Fatalf("members %v, %v", ran, err)
	}
	if err := os.RemoveAll(deleted.Dir); err != nil {
		t.Fatal(err)
	}
	next := s.New(t)
	// A runtime finds out what the node has when it is checked, as by each agent that starts.
	if err := next.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	sweeper := next.(contract.Sweeper)
	if n, err := sweeper.EndForgotten(t.Context(), r.root, []muster.AllocID{known.ID}); n != 1 || err != nil {
		t.Fatalf("ended %d, %v, want 1", n, err)
	}
	for _, m := range ran {
		if initbox.Living(m.Process) {
			t.Errorf("%s %d lives", m.Role, m.Pid)
		}
	}
	if left, err := initbox.Members(known.Dir); err != nil || len(left) < 3 {
		t.Errorf("of the other sandbox live %v, %v", left, err)
	}
	if n, err := sweeper.EndForgotten(t.Context(), r.root, []muster.AllocID{known.ID}); n != 0 || err != nil {
		t.Errorf("ended %d once more, %v", n, err)
	}
}
