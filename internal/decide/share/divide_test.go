package share

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestN18EntitlementFirst(t *testing.T) {
	got := Divide(1000-710, []Party{
		{"a", 30, 200, 290}, {"b", 25, 300, 230}, {"c", 20, 0, 150}, {"d", 15, 100, 150}, {"e", 10, 110, 90}, {"f", 0, 0, 328},
	})
	if want := []int{94, 0, 150, 46, 0, 0}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestN19UnusedIsLent(t *testing.T) {
	got := Divide(1000-710, []Party{
		{"a", 30, 200, 10}, {"b", 25, 300, 230}, {"c", 20, 0, 0}, {"d", 15, 100, 50}, {"e", 10, 110, 90}, {"f", 0, 0, 328},
	})
	if want := []int{10, 157, 0, 50, 73, 0}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestN20RoomForOne(t *testing.T) {
	got := Divide(1, []Party{{"a", 1, 5, 3}, {"b", 1, 5, 3}, {"c", 1, 0, 0}})
	if want := []int{1, 0, 0}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestWhoHasNoWeightGetsWhatIsLeft(t *testing.T) {
	for _, tc := range []struct {
		room    int
		parties []Party
		want    []int
	}{
		{10, []Party{{"a", 1, 0, 4}, {"b", 0, 0, 9}, {"c", 0, 2, 9}}, []int{4, 4, 2}},
		{3, []Party{{"a", 1, 0, 4}, {"b", 0, 0, 9}}, []int{3, 0}},
		{5, nil, []int{}},
		{0, []Party{{"a", 1, 0, 4}}, []int{0}},
		{-5, []Party{{"a", 1, 0, 4}}, []int{0}},
		{5, []Party{{"a", 1, -3, 4}, {"b", 1, 0, -2}}, []int{4, 0}},
		{5, []Party{{"a", 0, 0, 9}, {"b", 0, 0, 9}}, []int{3, 2}},
	} {
		if got := Divide(tc.room, tc.parties); !slices.Equal(got, tc.want) {
			t.Errorf("room %d, %v: got %v, want %v", tc.room, tc.parties, got, tc.want)
		}
	}
}

// The quick way and giving one by one come to the same, all room is used while somebody waits, and nobody gets more than he waits for.
func TestDivideAgainstOneByOne(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		parties := make([]Party, rapid.IntRange(0, 8).Draw(rt, "parties"))
		for i := range parties {
			parties[i] = Party{fmt.Sprint(i), rapid.IntRange(0, 5).Draw(rt, "weight"), rapid.IntRange(0, 60).Draw(rt, "running"), rapid.IntRange(0, 60).Draw(rt, "waiting")}
		}
		room := rapid.IntRange(0, 300).Draw(rt, "room")
		got, want := Divide(room, parties), oneByOne(room, parties)
		if !slices.Equal(got, want) {
			rt.Fatalf("room %d, %v: got %v, one by one %v", room, parties, got, want)
		}
	})
}

func oneByOne(room int, parties []Party) []int {
	starts := make([]int, len(parties))
	for range room {
		best := -1
		for i := range parties {
			p := &parties[i]
			if starts[i] >= p.Waiting {
				continue
			}
			if best < 0 {
				best = i
				continue
			}
			b := &parties[best]
			switch {
			case p.Weight == 0 && b.Weight > 0:
			case p.Weight > 0 && b.Weight == 0:
				best = i
			default:
				wp, wb := max(p.Weight, 1), max(b.Weight, 1)
				l, r := (p.Running+starts[i]+1)*wb, (b.Running+starts[best]+1)*wp
				if l < r || l == r && (wp > wb || wp == wb && p.Name < b.Name) {
					best = i
				}
			}
		}
		if best < 0 {
			break
		}
		starts[best]++
	}
	return starts
}

// Room for 10,000 nodes of 16 places each, among 300 classes with so many members waiting.
func BenchmarkDivide(b *testing.B) {
	for _, waiting := range []int{100_000, 800_000} {
		b.Run(fmt.Sprint(waiting), func(b *testing.B) {
			parties := make([]Party, 300)
			for i := range parties {
				parties[i] = Party{fmt.Sprint(i), 1 + i%17, i * 7 % 900, waiting / 300}
			}
			for b.Loop() {
				Divide(160_000-100_000, parties)
			}
		})
	}
}
