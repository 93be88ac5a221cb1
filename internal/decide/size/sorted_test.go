package size

import (
	"cmp"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestSorted: a set is what a sorted slice of the same elements is.
func TestSorted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := ordered(cmp.Compare[int])
		have := map[int]bool{}
		width := rapid.SampledFrom([]int{3, 100, 5000}).Draw(t, "width")
		for range rapid.IntRange(0, 20).Draw(t, "rounds") {
			// Runs of neighbours, so that runs fill and empty.
			from, k := rapid.IntRange(0, width).Draw(t, "from"), rapid.IntRange(1, 700).Draw(t, "k")
			for x := from; x < from+k; x++ {
				if rapid.Bool().Draw(t, "set") || x%3 > 0 {
					s.Set(x)
					have[x] = true
				} else {
					s.Delete(x)
					delete(have, x)
				}
			}
			if rapid.IntRange(0, 3).Draw(t, "clear") == 0 {
				for x := from; x < from+k; x++ {
					s.Delete(x)
					delete(have, x)
				}
			}
			var want, got []int
			for x := range have {
				want = append(want, x)
			}
			slices.Sort(want)
			s.Scan(func(x int) bool { got = append(got, x); return true })
			least, ok := s.Min()
			if !slices.Equal(got, want) || s.Len() != len(want) || ok != (len(want) > 0) || ok && least != want[0] {
				t.Fatalf("has %v (%d), want %v", got, s.Len(), want)
			}
			for _, r := range s.runs {
				if len(r) == 0 || len(r) > longestRun {
					t.Fatalf("a run of %d", len(r))
				}
			}
		}
	})
}
