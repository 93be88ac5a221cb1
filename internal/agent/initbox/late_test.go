package initbox

import (
	"context"
	"errors"
	"os/exec"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// An init that does not answer in time is no failure of the node's for certain: the runtime, which can try what is known to be good,
// says whose it is.
func TestLateInitIsJudgedByTheRuntime(t *testing.T) {
	k, err := New(Config{Runtime: Unwalled})
	if err != nil {
		t.Fatal(err)
	}
	theirs := &muster.Failure{Class: muster.FailureOutside, Reason: muster.ReasonImage, Message: "busy"}
	for name, c := range map[string]struct {
		late func(context.Context, error) error
		want muster.FailureClass
	}{
		"a runtime that judges":      {func(context.Context, error) error { return theirs }, muster.FailureOutside},
		"a runtime that blames it":   {func(_ context.Context, err error) error { return err }, muster.FailureNode},
		"a runtime without judgment": {nil, muster.FailureNode},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			silent := exec.Command("sleep", "1000")
			plan := &Plan{Start: &initwire.Start{Work: "/", Command: []string{"true"}}, StartLimit: time.Hour, Late: c.late,
				Spawn: func(context.Context, []int) (int, int, error) {
					if err := silent.Start(); err != nil {
						return 0, -1, err
					}
					cancel() // the time is over
					return silent.Process.Pid, -1, nil
				}}
			_, err := k.Start(ctx, &agent.SandboxConfig{ID: "late-0-1", Dir: t.TempDir(), Work: "/", Command: []string{"true"}, OutputLimit: 1 << 20}, plan)
			var f *muster.Failure
			if !errors.As(err, &f) || f.Class != c.want {
				t.Errorf("%v", err)
			}
			_ = silent.Process.Kill()
			_ = silent.Wait()
		})
	}
}
