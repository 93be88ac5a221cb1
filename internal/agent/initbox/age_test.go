package initbox

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	initwire "github.com/musterhq/muster/internal/wire/init"
)

// A sandbox that is found again is given the rest of its time, whatever the wall clock was set to since it was started: its
// init was not started an hour ago, and not in an hour from now. (D20)
func TestAgeAfterAStepOfTheClock(t *testing.T) {
	st, ok := ReadStat(os.Getpid())
	if !ok {
		t.Fatal("no state of this process")
	}
	k := &Keeper{config: Config{EndLimit: 15 * time.Second}}
	for _, c := range []struct {
		name    string
		started time.Duration // of the recorded start from now
	}{{"no step", 0}, {"stepped ahead by a day", -24 * time.Hour}, {"stepped back by a day", 24 * time.Hour}} {
		t.Run(c.name, func(t *testing.T) {
			s := newSandbox(k, t.TempDir(), &initwire.Sandbox{Timeout: 10 * time.Hour, KillGrace: time.Second}, initwire.Process{Pid: os.Getpid(), Start: st.Start})
			s.started = time.Now().Add(c.started)
			fd, err := unix.PidfdOpen(os.Getpid(), unix.PIDFD_NONBLOCK)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.hold(fd); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = s.pidfd.Close() }()
			if left := time.Until(s.due); left < 9*time.Hour || left > 11*time.Hour {
				t.Errorf("it is ended from outside in %s, its time limit is 10h", left)
			}
		})
	}
}
