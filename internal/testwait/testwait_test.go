package testwait_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster/internal/testwait"
)

// failed is a test that notes how it failed.
type failed struct {
	testing.TB
	why string
}

func (f *failed) Helper() {}

func (f *failed) Fatalf(format string, args ...any) {
	f.why = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func TestUntilWaitsForTheCondition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		testwait.Until(t, "a second passes", func() bool { return time.Since(began) >= time.Second })
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

func TestWithinEndsATestThatIsBroken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &failed{TB: t}
		began := time.Now()
		go testwait.Within(f, 10*time.Second, "the door opens", func() bool { return false })
		time.Sleep(time.Minute)
		synctest.Wait()
		if !strings.Contains(f.why, "10s") || !strings.Contains(f.why, "the door opens") {
			t.Errorf("after %v: %q", time.Since(began), f.why)
		}
	})
}
