package place

import (
	"fmt"
	"testing"

	"github.com/musterhq/muster/internal/decide/fit/fittest"
)

// BenchmarkExplain is an explanation of a job that waits, with most nodes full, of one that has room, and of one of its members; and the
// reason alone. On 10,000 nodes of a hundred classes, and of as many classes as there are nodes.
func BenchmarkExplain(b *testing.B) {
	for _, classes := range []int{100, 10_000} {
		c := fittest.New(b, 1000)
		for i := range 10_000 {
			c.Do(fmt.Sprintf("node n%05d cpu=8 memory=32GiB zone=z%d meta.rack=r%d os=linux arch=amd64", i, i%4, i%classes))
		}
		c.Do("job fill count=9900 cpu=7 memory=1GiB priority=90")
		apply(b, c, Plan(c.Snapshot(), everyJob(c.Snapshot()), c.Now(), Limits{10_000, 1 << 30}))
		c.Do("job stuck count=500 cpu=2 needs arch = amd64; zone = z9")
		c.Do("job web count=500 cpu=2 needs arch = amd64 likes zone = z1 +20 spread meta.rack")
		snap := c.Snapshot()
		run := func(name string, f func()) {
			b.Run(fmt.Sprintf("%s/%d-classes", name, classes), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					f()
				}
			})
		}
		run("stuck", func() { Explain(snap.JobByUID("stuck"), snap, c.Now()) })
		run("web", func() { Explain(snap.JobByUID("web"), snap, c.Now()) })
		run("member", func() { ExplainMember(snap.JobByUID("fill"), 7, snap, c.Now()) })
		run("why", func() { Why(snap.JobByUID("stuck"), snap, c.Now()) })
	}
}
