package fencing

import (
	"encoding/json"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/musterhq/muster/internal/agent/boot"
)

// While the machine is suspended the server's clock goes on: the guard lapses by that.
func TestGuardLapsesWhileSuspended(t *testing.T) {
	g := LoadGuard(t.TempDir(), slog.New(slog.DiscardHandler))
	asleep := g.asleepAtBegan
	g.asleep = func() time.Duration { return asleep }
	g.Renew(g.Tick(), time.Hour.Milliseconds(), true)
	asleep += 59 * time.Minute
	if !g.Holds() {
		t.Fatal("it has lapsed before its time")
	}
	before := g.Tick()
	asleep += 2 * time.Minute
	if g.Holds() {
		t.Error("it holds beyond its time")
	}
	if passed := g.Tick() - before; passed < (2 * time.Minute).Microseconds() {
		t.Errorf("ticks went on by %d µs in two minutes", passed)
	}
	g.Renew(before, (10 * time.Minute).Milliseconds(), false)
	if left, _ := g.Left(); left <= 7*time.Minute || left > 8*time.Minute {
		t.Errorf("%s are left of ten minutes, granted two minutes ago", left)
	}
}

// slowDisk is a guard's file that takes as long as the test wants.
type slowDisk struct {
	begun, goOn chan struct{}
	last        time.Duration // from the machine's boot
	err         error
}

func newSlowGuard(t *testing.T) (*Guard, *slowDisk) {
	t.Helper()
	d := &slowDisk{begun: make(chan struct{}), goOn: make(chan struct{})}
	g := LoadGuard(t.TempDir(), slog.New(slog.DiscardHandler))
	g.write = func(_ string, b []byte) error {
		d.begun <- struct{}{}
		<-d.goOn
		var f guardFile
		if err := json.Unmarshal(b, &f); err != nil {
			t.Error(err)
		}
		if d.err == nil {
			d.last = f.Until
		}
		return d.err
	}
	return g, d
}

// Whoever asks how long the guard holds does not wait for the disk.
func TestGuardIsAskedWhileItIsWritten(t *testing.T) {
	g, disk := newSlowGuard(t)
	done := make(chan struct{})
	go func() { defer close(done); g.Renew(g.Tick(), time.Hour.Milliseconds(), true) }()
	<-disk.begun
	if left, limit := g.Left(); left <= 0 || limit != time.Hour || !g.Holds() {
		t.Errorf("left %s of %s", left, limit)
	}
	close(disk.goOn)
	<-done
}

// A word that grants less than one that is just being written is on the disk when Renew returns,
// and so is one after a write that failed.
func TestShorterWordIsTheLastOnTheDisk(t *testing.T) {
	g, disk := newSlowGuard(t)
	tick := g.Tick()
	first, second := make(chan struct{}), make(chan struct{})
	go func() { defer close(first); g.Renew(tick, time.Hour.Milliseconds(), true) }()
	<-disk.begun
	go func() { defer close(second); g.Renew(tick, time.Minute.Milliseconds(), true) }()
	disk.goOn <- struct{}{}
	<-first
	<-disk.begun
	disk.goOn <- struct{}{}
	<-second
	if up, _ := boot.Uptime(); disk.last <= up || disk.last > up+time.Minute {
		t.Errorf("the disk says that it holds for %s", disk.last-up)
	}

	disk.err = errors.New("no")
	third := make(chan struct{})
	go func() { defer close(third); g.Renew(tick, time.Hour.Milliseconds(), true) }()
	<-disk.begun
	disk.goOn <- struct{}{}
	<-third
	disk.err = nil
	fourth := make(chan struct{})
	go func() { defer close(fourth); g.Renew(tick, 2*time.Minute.Milliseconds(), true) }()
	<-disk.begun
	disk.goOn <- struct{}{}
	<-fourth
	if up, _ := boot.Uptime(); disk.last <= up+time.Minute || disk.last > up+2*time.Minute {
		t.Errorf("the disk says that it holds for %s", disk.last-up)
	}
	g.Keep() // writes nothing: it is there
}
