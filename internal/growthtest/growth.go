// Package growthtest measures how the cost of something grows with its size. Benchmarks of several packages use it; no program may.
package growthtest

import (
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// Run runs a benchmark at two sizes, the second four times the first, and reports the processor time of a pass and the
// ratio between the two. Processor time and not the clock's: others on a busy machine do not count. SetUp makes what a pass
// works on; before, if it is not nil, runs before each pass and is not measured.
func Run(b *testing.B, what string, first int, setUp func(b *testing.B, n int) (before, pass func())) {
	var took [2]time.Duration
	for i, n := range [2]int{first, 4 * first} {
		b.Run(fmt.Sprintf("%s=%d", what, n), func(b *testing.B) {
			before, pass := setUp(b, n)
			took[i] = 0
			// What setUp left behind is collected before and not during the passes.
			runtime.GC()
			for b.Loop() {
				if before != nil {
					b.StopTimer()
					before()
					b.StartTimer()
				}
				began := processor()
				pass()
				took[i] += processor() - began
			}
			took[i] /= time.Duration(b.N)
			b.ReportMetric(float64(took[i].Microseconds())/1000, "cpu-ms/pass")
			if i > 0 && took[0] > 0 {
				b.ReportMetric(float64(took[1])/float64(took[0]), "times-for-4x")
			}
		})
	}
}

// processor is the processor time that the process has had.
func processor() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
