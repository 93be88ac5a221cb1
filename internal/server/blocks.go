package server

import (
	"github.com/musterhq/muster/internal/decide/size"
	"github.com/musterhq/muster/internal/operate"
	"github.com/musterhq/muster/internal/state"
)

// follows answers for the loops on a server that does not lead: what providers have refused is in
// the log, and everything else is known to the leader alone.
type follows struct {
	operate.Idle
	state *state.State
}

// Fleet has no decisions, and the blocks of the state.
func (f follows) Fleet() (*size.Decisions, []size.Block) {
	return nil, size.BlocksOf(f.state.Latest())
}
