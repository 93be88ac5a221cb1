package broker

import (
	"fmt"
	"strings"
	"testing"

	"github.com/musterhq/muster/internal/control/apply/memlog"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/decide/place"
	"github.com/musterhq/muster/internal/growthtest"
	"github.com/musterhq/muster/internal/state"
)

// Small work behind any number of large jobs that a limit blocks is woken when the limit has room for it.
func TestSmallWorkBehindManyThatALimitBlocks(t *testing.T) {
	inBubble(t, Config{}, func(r *rig) {
		var text strings.Builder
		text.WriteString("node n1 cpu=64 memory=64GiB\nlimit default cpu=4\njob first count=1 cpu=4\nplace first 0 n1\n")
		for i := range 400 {
			fmt.Fprintf(&text, "job large%d count=1 cpu=4\n", i)
		}
		text.WriteString("job small count=1 cpu=1\njob one count=1 cpu=1")
		r.do(text.String())
		r.workAll(500)
		r.is("blocked 402")
		// Two cores are left: too few for the 400, enough for the two.
		r.do("limit default cpu=6")
		r.is("ready 2, blocked 400")
	})
}

// D22: a limit that leaves room for one more, with many behind it that it blocks: at two sizes, for the ratio.
func BenchmarkGrowthLimit(b *testing.B) {
	growthtest.Run(b, "blocked", 5000, func(b *testing.B, jobs int) (before, pass func()) {
		log := memlog.New(b, 1<<16)
		commit := func(text string) { facts(b, log, text, func(f state.Fact) { log.Must(b, f) }) }
		commit("node n1 cpu=64 memory=64GiB\nlimit default cpu=4\njob first count=1 cpu=4\nplace first 0 n1")
		var text strings.Builder
		for i := range jobs {
			fmt.Fprintf(&text, "job large%d count=1 cpu=4\n", i)
		}
		text.WriteString("job small count=1 cpu=1")
		commit(text.String())
		br := driven(b, Config{}, log)
		br.mu.Lock()
		defer br.mu.Unlock()
		snap := log.Latest()
		for _, e := range br.entries {
			br.blockLocked(e, snap.Index(), &place.Blocked{UID: e.uid, Waiting: 1, Bound: fit.Bound{Namespace: "default"}})
		}
		commit("limit default cpu=5")
		small := br.entries["small"]
		before = func() {
			br.mu.Lock()
			defer br.mu.Unlock()
			if small.stage != blocked {
				br.blockLocked(small, snap.Index(), &place.Blocked{UID: small.uid, Waiting: 1, Bound: fit.Bound{Namespace: "default"}})
			}
		}
		return before, func() {
			br.mu.Lock()
			defer br.mu.Unlock()
			br.offerLimitLocked("default", log.Latest())
			if small.stage != ready {
				b.Fatal("the small one was not woken")
			}
		}
	})
}
