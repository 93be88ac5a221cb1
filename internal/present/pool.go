package present

import (
	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/decide/size"
)

// Block shows what the server does not ask of a provider for a while, because the provider refused
// it. Over says that the time has passed at now; the next launch asks again.
func Block(b *size.Block, now muster.Time) api.Block {
	return api.Block{
		Provider: string(b.Scope.Provider), Offering: string(b.Scope.Offering), Zone: b.Scope.Zone, Market: string(b.Scope.Market), Family: b.Scope.Family,
		Until: b.Until.Std(), Over: b.Until <= now, Why: b.Why,
	}
}

// Wait shows waiting members of one shape and priority for which the fleet launches nothing more.
func Wait(w *size.Wait) api.Wait {
	return api.Wait{Priority: w.Priority, Members: w.Members, Reason: w.Reason}
}
