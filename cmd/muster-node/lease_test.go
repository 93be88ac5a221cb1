package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/journal"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// With all servers gone an agent that is all there is of its instance ends, with its sandboxes and its
// directory; one whose machine is ended by a command runs it.
func TestAgentEndsWithItsLease(t *testing.T) {
	n := newNode(t)
	n.start(nodeProgram, "--lease-end", "self")
	n.send(wire.Desired{Allocs: []wire.DesiredAlloc{shell("u-0-1", "exec sleep 100000")}})
	n.until("u-0-1", muster.AllocRunning)
	r, err := journal.ReadRecord(n.dir)
	if err != nil || !r.Alive() {
		t.Fatalf("%+v, %v", r, err)
	}
	n.send(wire.Desired{LeaseMillis: 1})
	done := make(chan error, 1)
	go func() { done <- n.cmd.Wait() }()
	<-done
	n.eventually("its directory is gone", func() bool {
		_, err := os.Lstat(n.dir)
		return errors.Is(err, fs.ErrNotExist)
	})
	if r.Alive() {
		t.Error("the agent lives")
	}
	if err := os.Mkdir(n.dir, 0o700); err != nil { // for what follows the test
		t.Fatal(err)
	}

	m := newNode(t)
	ran := filepath.Join(t.TempDir(), "off")
	m.start(nodeProgram, "--lease-end", "touch "+ran)
	m.send(wire.Desired{LeaseMillis: 1})
	m.eventually("the machine is shut down", func() bool {
		_, err := os.Lstat(ran)
		return err == nil
	})
}
