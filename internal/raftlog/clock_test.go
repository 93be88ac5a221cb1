package raftlog

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster/internal/testwait"
)

// An hour back on the system's clock is not an hour in which nothing expires.
func TestClockThatWasSetBack(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		var offset time.Duration // of the system's clock
		m := &recorder{}
		var told syncBuffer
		run := func() (l *Log, stop func()) {
			l, err := Open(small(dir, m))
			if err != nil {
				t.Fatal(err)
			}
			l.driver.clock.Logger = slog.New(slog.NewTextHandler(&told, nil))
			l.driver.clock.Wall = func() int64 { return time.Now().Add(offset).UnixMicro() }
			ctx, cancel := context.WithCancel(t.Context())
			end := make(chan error, 1)
			go func() { end <- l.Run(ctx) }()
			testwait.Until(t, "the server leads", l.IsLeader)
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
		offset = 0
		for range 4 {
			time.Sleep(30 * time.Minute) // until it is where it was
			at(l)
		}

		// A step ahead is approached by a tenth of the time that passes, whether anything is written meanwhile or not.
		before := at(l)
		offset = 365 * 24 * time.Hour
		moved("a year ahead, at first", before, at(l), 0)
		moved("as the loops see it", before, time.UnixMicro(int64(l.Now())), 0)
		time.Sleep(30 * time.Minute)
		moved("a year ahead, half an hour later", before, at(l), 33*time.Minute)
		offset = -365 * 24 * time.Hour
		before = at(l)
		time.Sleep(time.Minute)
		moved("a year back", before, at(l), time.Minute)
		stop()

		// A process that begins takes the system's clock as it is.
		offset = 5 * time.Hour
		l, stop = run()
		ahead := at(l)
		moved("the system's is ahead at the start", time.Now().Add(offset), ahead, 0)
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
		for _, words := range []string{"was set back", "was set ahead", "is behind the times in the log"} {
			if n := strings.Count(told.String(), words); n < 1 || n > 2 {
				t.Errorf("%q was told %d times:\n%s", words, n, told.String())
			}
		}
		if m.backAt {
			t.Error("the log's time went back")
		}
	})
}

// syncBuffer is a buffer for a logger of another goroutine.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(b)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
