package fleet_test

import (
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

// TestVolumeAddedToPool: a job that wants a volume which its pool got after its nodes ran gets a new
// node, beside one that runs without the volume.
func TestVolumeAddedToPool(t *testing.T) {
	inBubble(t, func(w *world) {
		w.must(&state.FormatRaised{Format: state.FormatNewest})
		has := func(read string) {
			w.mu.Lock()
			w.said = map[string]string{muster.AttributeContainers: "crun", muster.AttributeVolumes: read}
			w.mu.Unlock()
			w.pool.Volumes = read
			w.must(&state.PoolsSet{Pools: []state.Pool{w.pool}})
		}
		has("tmpfs")
		w.start()
		w.submit("before", 1, 1, "sleep 1000s ; true")
		w.until("a node without the volume", time.Minute, func(s *state.Snapshot) bool { return s.Alloc("ubefore-0-1") != nil })
		has("tmpfs,data")
		w.submit("a", 1, 1, "sleep 1s ; true", func(s *api.JobSpec) {
			s.Image, s.Volumes = "i", []api.VolumeSpec{{Name: "data", Path: "/data"}}
		})
		w.until("a's end", 2*time.Minute, ended("a", muster.JobSucceeded))
		if of, old := w.nodeOf("a", 0), w.nodeOf("before", 0); of == "" || of == old {
			t.Errorf("a ran on %q, and the node without the volume is %q", of, old)
		}
	})
}
