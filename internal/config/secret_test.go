package config

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

// S-M1: what a server shows of its configuration has no credentials of clouds in it.
func TestMaskedConfigHasNoSecrets(t *testing.T) {
	c := &api.ServerConfig{
		Providers:  []api.ProviderSpec{{Name: "cloud", Type: api.ProviderExec, Command: []string{"/bin/cloud", "--key=very-secret"}, Env: map[string]string{"KEY": "very-secret"}}},
		Registries: []api.RegistrySpec{{Host: "r", Password: muster.NewSecret("very-secret")}},
		Compat:     api.CompatConfig{Poseidon: &api.PoseidonConfig{Token: muster.NewSecret("very-secret")}},
	}
	b, err := json.Marshal(Masked(c))
	if err != nil || strings.Contains(string(b), "very-secret") || !strings.Contains(string(b), `"KEY":"***"`) || !strings.Contains(string(b), "/bin/cloud") {
		t.Errorf("%s, %v", b, err)
	}
	if c.Providers[0].Env["KEY"] != "very-secret" || c.Providers[0].Command[1] != "--key=very-secret" {
		t.Error("the configuration itself was changed")
	}
	// A client reads it, secrets and all.
	var read api.ServerConfig
	if err := json.Unmarshal(b, &read); err != nil || read.Compat.Poseidon == nil {
		t.Errorf("%+v, %v", read, err)
	}
	// What was masked is not told to be changed, and what has changed is not told with its value.
	if changes, err := Changes(&read, c); len(changes) > 0 || err != nil {
		t.Errorf("%v, %v", changes, err)
	}
	next := *c
	next.Providers = []api.ProviderSpec{{Name: "cloud", Type: api.ProviderExec, Command: []string{"/bin/cloud", "--key=other-secret"}, Env: map[string]string{"KEY": "other-secret", "B": "other-secret"}}}
	changes, err := Changes(c, &next)
	if len(changes) != 3 || err != nil {
		t.Errorf("%v, %v", changes, err)
	}
	for _, change := range changes {
		if strings.Contains(change.String(), "secret") {
			t.Error(change)
		}
	}
}
