package inside

import (
	"net/http"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// What an init refuses an execution for has a status by which clients decide whether to try again.
func TestReasonsOfRefusedExecutions(t *testing.T) {
	for _, c := range []struct {
		class, reason string
		status        int
		code          string
	}{
		{initwire.ClassUser, initwire.ReasonCommandNotFound, http.StatusUnprocessableEntity, api.CodeCommandNotFound},
		{initwire.ClassUser, initwire.ReasonNotExecutable, http.StatusUnprocessableEntity, api.CodeNotExecutable},
		{initwire.ClassUser, initwire.ReasonExecExists, http.StatusConflict, string(muster.FaultAlreadyExists)},
		{initwire.ClassUser, initwire.ReasonNoExec, http.StatusNotFound, string(muster.FaultNotFound)},
		{initwire.ClassUser, initwire.ReasonExecEnded, http.StatusConflict, string(muster.FaultConflict)},
		{initwire.ClassUser, initwire.ReasonProcessLimit, http.StatusConflict, string(muster.FaultConflict)},
		{initwire.ClassUser, initwire.ReasonOutputGone, http.StatusGone, string(muster.FaultTooOld)},
		{initwire.ClassUser, initwire.ReasonEnding, http.StatusGone, api.CodeEnded},
		{initwire.ClassUser, "unheard of", http.StatusUnprocessableEntity, string(muster.FaultInvalid)},
		{initwire.ClassNode, "unheard of", http.StatusServiceUnavailable, string(muster.FaultUnavailable)},
	} {
		p := execProblem(&initwire.Failed{Class: c.class, Reason: c.reason, Message: "why"})
		if p.Status != c.status || p.Code != c.code {
			t.Errorf("%s, class %s: %d %s, want %d %s", c.reason, c.class, p.Status, p.Code, c.status, c.code)
		}
	}
}
