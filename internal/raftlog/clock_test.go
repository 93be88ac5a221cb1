package raftlog

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// An hour back on the system's clock is not an hour in which nothing expires.
func TestClockThatWasSetBack(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		var offset time.Duration // of the system's clock
		m := &recorder{}
		run := func() (l *Log, stop func()) {
			l, err := Open(small(dir, m))
			if err != nil {
				t.Fatal(err)
			}
			l.driver.clock.wall = func() int64 { return time.Now().Add(offset).UnixMicro() }
			ctx, cancel := context.WithCancel(t.Context())
			end := make(chan error, 1)
			go func() { end <- l.Run(ctx) }()
			waitFor(t, "the server leads", l.IsLeader)
			return l, func() {
				cancel()
				if err := <-end; err != nil {
					t.Error(err)
				}
			}
		}
		at := func(l *Log) time.Time {
			t.Helper()
			if _, err := l.Propose(t.Context(), []byte("x")); err != nil {
				t.Fatal(err)
			}
			_, _, at := m.seen()
			return time.UnixMicro(at)
		}
		moved := func(what string, from, to time.Time, want time.Duration) {
			t.Helper()
			if d := to.Sub(from); d < want || d > want+time.Second {
				t.Errorf("%s: the log's time moved by %v, want %v", what, d, want)
			}
		}

		l, stop := run()
		first := at(l)
		moved("at first", time.Now(), first, 0)
		offset = -time.Hour
		for range 1000 { // and entries on the way do not slow it down
			time.Sleep(1800*time.Millisecond + 900*time.Nanosecond)
			at(l)
		}
		half := at(l)
		moved("half an hour behind", first, half, 30*time.Minute+900*time.Microsecond)
		time.Sleep(30 * time.Minute)
		moved("still behind", half, at(l), 30*time.Minute)
		offset = 5 * time.Hour
		ahead := at(l)
		moved("the system's is ahead", time.Now().Add(offset), ahead, 0)
		stop()

		// Over a restart, with a system's clock that is behind the log's.
		offset = 0
		m = &recorder{}
		l, stop = run()
		if err := l.Barrier(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Minute)
		moved("after a restart", ahead, at(l), 20*time.Minute)
		stop()
		if m.backAt {
			t.Error("the log's time went back")
		}
	})
}
