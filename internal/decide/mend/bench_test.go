package mend

import (
	"fmt"
	"testing"

	"github.com/musterhq/muster"
)

// BenchmarkPassWithoutChange is one pass over 10,000 nodes in service of which nothing is to be done about any.
func BenchmarkPassWithoutChange(b *testing.B) {
	c := newCluster(b)
	c.line("pool p")
	var all []string
	for i := range 10_000 {
		id := fmt.Sprintf("n%05d", i)
		c.node(muster.NodeID(id), muster.NodeServing)
		all = append(all, id)
	}
	c.list(true, all...)
	if out := c.out.String(); out != "" {
		b.Fatal(out)
	}
	b.ReportAllocs()
	for b.Loop() {
		if d := c.plan(); len(d.Terminate)+len(d.Gone)+len(d.Drain)+len(d.Looks) > 0 {
			b.Fatalf("%+v", d)
		}
	}
}
