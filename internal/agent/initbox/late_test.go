package initbox

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
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
	judges := func(context.Context, error) error { return theirs }
	for name, c := range map[string]struct {
		late    func(context.Context, error) error
		stopped bool
		want    muster.FailureClass
	}{
		"a runtime that judges":      {judges, false, muster.FailureOutside},
		"a runtime that blames it":   {func(_ context.Context, err error) error { return err }, false, muster.FailureNode},
		"a runtime without judgment": {nil, false, muster.FailureNode},
		"stopped meanwhile":          {judges, true, muster.FailureNode},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			silent := exec.Command("sleep", "1000")
			plan := &Plan{Start: &initwire.Start{Work: "/", Command: []string{"true"}}, StartLimit: time.Hour, Late: c.late,
				Spawn: func(_ context.Context, fds []int) (int, int, error) {
					// It has the control connection, and says nothing over it.
					for _, fd := range fds {
						d, err := unix.Dup(fd)
						if err != nil {
							return 0, -1, err
						}
						f := os.NewFile(uintptr(d), "inherited")
						defer func() { _ = f.Close() }()
						silent.ExtraFiles = append(silent.ExtraFiles, f)
					}
					if err := silent.Start(); err != nil {
						return 0, -1, err
					}
					if c.stopped {
						cancel()
					}
					return silent.Process.Pid, -1, nil
				}}
			_, err := k.Start(ctx, &contract.SandboxConfig{ID: "late-0-1", Dir: t.TempDir(), Work: "/", Command: []string{"true"}, OutputLimit: 1 << 20}, plan)
			var f *muster.Failure
			if !errors.As(err, &f) || f.Class != c.want {
				t.Errorf("%v", err)
			}
			_ = silent.Process.Kill()
			_ = silent.Wait()
		})
	}
}
