package azure

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/azure/azuretest"
	"github.com/musterhq/muster/internal/cloud/standin"
)

// What becomes of what stands behind machines: it has the addresses that the driver finds, and ends with
// the machines, also when the cloud evicts one. The driver signs in with a managed identity.
func TestMachinesBehindMachines(t *testing.T) {
	m := &standin.Fake{}
	now := time.Now()
	c := azuretest.New(t, azuretest.Options{Machines: m, Now: func() time.Time { return now }})
	for _, v := range c.Environment(c.URL) {
		name, value, _ := strings.Cut(v, "=")
		t.Setenv(name, value)
	}
	p := started(t, c, "o", func(cfg *Config) {
		cfg.Credential, cfg.Markets = nil, []muster.Market{muster.OnDemand, muster.Spot}
	})
	spot := intent("b")
	spot.Market = muster.Spot
	made := p.Create(t.Context(), []cloud.Intent{intent("a"), spot})
	if made[0].Err != nil || made[1].Err != nil {
		t.Fatalf("%+v", made)
	}
	one, two := made[0].Instance.ID, made[1].Instance.ID
	for _, id := range []muster.InstanceID{one, two} {
		if a, err := p.Access(t.Context(), id); err != nil || a.Address != standin.FakeAddress {
			t.Errorf("%s: %+v, %v", id, a, err)
		}
	}
	if c.Take(string(one), time.Minute) {
		t.Error("it evicts a machine that is not of the spot market")
	}
	if !c.Take(string(two), time.Minute) {
		t.Error("there is no spot machine")
	}
	if at, noticed := c.Notice(string(two)); !noticed || !at.Equal(now.Add(time.Minute)) || len(m.Running()) != 2 {
		t.Errorf("noticed: %v, at %s, %v", noticed, at, m.Running())
	}
	now = now.Add(time.Minute)
	if vms, parts, _ := c.Books(); len(vms) != 1 || len(parts) != 2 || len(m.Running()) != 1 {
		t.Errorf("after a minute: %v %v %v", vms, parts, m.Running())
	}
	for _, step := range []struct {
		what    string
		do      func(context.Context, []muster.InstanceID) []error
		running int
	}{{"stop", p.Stop, 0}, {"start", p.Start, 1}, {"destroy", p.Destroy, 0}} {
		if errs := step.do(t.Context(), []muster.InstanceID{one}); errs[0] != nil || len(m.Running()) != step.running {
			t.Errorf("%s: %v %v", step.what, errs, m.Running())
		}
	}
}

// Without the secret of the environment nobody gets a token.
func TestManagedIdentityOfAnother(t *testing.T) {
	c := azuretest.New(t, azuretest.Options{})
	answer, err := http.Get(c.Environment(c.URL)[0][len("IDENTITY_ENDPOINT="):] + "?api-version=2019-08-01&resource=x")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusBadRequest {
		t.Error(answer.Status)
	}
}
