package link

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster/internal/state"
)

// F-M4: a start that hangs until its time is over is told on the node like one that fails.
func TestStartThatHangsIsTold(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.config.StartAgent = func(ctx context.Context, _ *state.Node) error {
			<-ctx.Done()
			return ctx.Err()
		}
		n := r.boot("n1", 4)
		n.Kill()
		r.start()
		r.until("the cause is told", 10*time.Minute, func(s *state.Snapshot) bool {
			return strings.Contains(s.Node("n1").BootError, "did not end within 2m0s")
		})
	})
}
