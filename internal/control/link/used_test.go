package link

import (
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// What an attempt used is written only when every server reads it.
func TestUsageOfAnEndedAttempt(t *testing.T) {
	s, err := state.New(16)
	if err != nil {
		t.Fatal(err)
	}
	raise := func(index uint64, format state.Format) {
		t.Helper()
		b, err := s.Encode(&state.FormatRaised{Format: format})
		if err != nil {
			t.Fatal(err)
		}
		s.Apply(index, 1, 1, [][]byte{b})
	}
	on := &session{n: &nodeLink{l: &Link{cfg: Config{State: s}}}}
	row := &state.Alloc{ID: "u-0-1"}
	update := func(status muster.AllocStatus, cpu int64, memory muster.Bytes) state.AllocUpdate {
		return on.updateOf(row, &wire.AllocReport{ID: row.ID, Status: status, Usage: &wire.Usage{CPUMicros: cpu, Memory: memory}})
	}
	raise(1, state.FormatUsage-1)
	if u := update(muster.AllocEnded, 7, 8); u.CPU != 0 || u.PeakMemory != 0 {
		t.Errorf("an older log got %+v", u)
	}
	raise(2, state.FormatUsage)
	for _, c := range []struct {
		status     muster.AllocStatus
		cpu        int64
		memory     muster.Bytes
		wantCPU    muster.Time
		wantMemory muster.Bytes
	}{
		{muster.AllocEnded, 7, 8, 7, 8},
		{muster.AllocRunning, 7, 8, 0, 0},
	} {
		if u := update(c.status, c.cpu, c.memory); u.CPU != c.wantCPU || u.PeakMemory != c.wantMemory {
			t.Errorf("%+v: %+v", c, u)
		}
	}
}
