package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/driver"
	"github.com/musterhq/muster/internal/testwait"
)

// TestMain is also the server that TestKilled kills: the environment says in which directory it makes
// or destroys a machine, before which step it kills itself, and how long after that.
func TestMain(m *testing.M) {
	dir := os.Getenv("MUSTER_QEMU_KILL_DIR")
	if dir == "" {
		os.Exit(m.Run())
	}
	h := &host{dir: dir, image: os.Getenv("MUSTER_QEMU_KILL_IMAGE")}
	p, err := New(h.config("o", 0))
	if err != nil {
		panic(err)
	}
	after, err := time.ParseDuration(os.Getenv("MUSTER_QEMU_KILL_AFTER"))
	if err != nil {
		panic(err)
	}
	die := func() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL) }
	last := os.Getenv("MUSTER_QEMU_KILL_STEP")
	p.step = func(now string) error {
		switch {
		case now == last && after == 0:
			die()
			select {}
		case now == last:
			time.AfterFunc(after, die)
		}
		return nil
	}
	if os.Getenv("MUSTER_QEMU_KILL_DESTROY") != "" {
		_ = p.Destroy(context.Background(), []muster.InstanceID{muster.InstanceID(driver.InstanceName("o", "t"))})
	} else {
		_ = p.Create(context.Background(), []cloud.Intent{intent("t")})
	}
	if after > 0 {
		select {} // it was quicker than its end
	}
	os.Exit(3)
}

// killed runs a server that is killed.
func (h *host) killed(t *testing.T, step, destroy string, after time.Duration) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "MUSTER_QEMU_KILL_DIR="+h.dir, "MUSTER_QEMU_KILL_IMAGE="+h.image,
		"MUSTER_QEMU_KILL_STEP="+step, "MUSTER_QEMU_KILL_DESTROY="+destroy, "MUSTER_QEMU_KILL_AFTER="+after.String())
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("it was not killed at step %s: %v", step, err)
	}
}

// TestKilledServer: a server that is killed before any step, or while QEMU starts, leaves a machine that
// its successor lists, or leftovers that it removes. There is no third thing, and no process.
func TestKilledServer(t *testing.T) {
	type kill struct {
		step, destroy string
		after         time.Duration
	}
	kills := []kill{{step: "record"}, {step: "seed"}, {step: "disk"}, {step: "start"}, {step: "answer"},
		{"end", "yes", 0}, {"remove", "yes", 0}, {"remove " + diskName, "yes", 0}, {"remove " + lockName, "yes", 0}}
	for ms := 1; ms <= 100; ms = ms*3/2 + 1 {
		kills = append(kills, kill{step: "start", after: time.Duration(ms) * time.Millisecond})
	}
	for _, k := range kills {
		t.Run(fmt.Sprintf("%s %s", k.step, k.after), func(t *testing.T) {
			h := newHost(t)
			p := h.open(t, "o", 0)
			if k.destroy != "" {
				create(t, p, "t")
			}
			h.killed(t, k.step, k.destroy, k.after)
			// A QEMU that is starting goes on. Whatever comes of it, the next lists and sweeps end it.
			testwait.Until(t, "nothing is left", func() bool {
				list, err := p.List(t.Context(), "")
				if err != nil || !list.Complete {
					t.Fatalf("%+v, %v", list, err)
				}
				for _, i := range list.Instances {
					if errs := p.Destroy(t.Context(), []muster.InstanceID{i.ID}); errs[0] != nil {
						t.Error(errs[0])
					}
				}
				left, err := p.Leftovers(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if err := errors.Join(p.Remove(t.Context(), left)...); err != nil {
					t.Error(err)
				}
				entries, err := os.ReadDir(h.dir)
				return err == nil && len(entries) == 0
			})
			if pids := running(h.dir); len(pids) > 0 {
				t.Errorf("processes %v are left", pids)
				for _, pid := range pids {
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
			}
		})
	}
}
