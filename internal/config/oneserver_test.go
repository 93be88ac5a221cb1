package config

import (
	"strings"
	"testing"

	"github.com/musterhq/muster/api"
)

func TestProvidersForOneServer(t *testing.T) {
	for kind, only := range map[string]bool{
		api.ProviderLocal: true, api.ProviderQemu: true, api.ProviderStatic: false, api.ProviderExec: false, api.ProviderEC2: false,
	} {
		why := OnlyOneServer(&api.ProviderSpec{Type: kind})
		if (why != "") != only {
			t.Errorf("%s: %q", kind, why)
		}
		if only && !strings.Contains(why, "use type static") {
			t.Errorf("%s: %q does not say what to do", kind, why)
		}
	}
}
