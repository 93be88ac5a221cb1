package poseidon

import (
	"net/http"

	"github.com/musterhq/muster/internal/state"
)

func (p *Poseidon) mapPorts(*http.Request, *state.Claim) []mappedPort { return []mappedPort{} }
