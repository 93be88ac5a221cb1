package gce

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/gce/gcetest"
	"github.com/musterhq/muster/internal/cloud/standin"
)

// What becomes of the machines behind instances: they have the addresses that the driver finds, and end
// with their instances, also when the cloud takes one back.
func TestMachinesBehindInstances(t *testing.T) {
	m := &standin.Fake{}
	now := time.Now()
	c := gcetest.New(t, gcetest.Options{Machines: m, Now: func() time.Time { return now }})
	p := open(t, c, "o", func(c *Config) { c.Markets = []muster.Market{muster.OnDemand, muster.Spot} })
	plain, spot := intent("a"), intent("b")
	plain.Boot.UserData, spot.Boot.UserData = muster.NewSecret("#cloud-config\n"), muster.NewSecret("#cloud-config\n")
	spot.Market = muster.Spot
	made := p.Create(t.Context(), []cloud.Intent{plain, spot})
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
		t.Error("it takes an instance that is not of the spot market")
	}
	if !c.Take(string(two), time.Minute) {
		t.Error("there is no spot instance")
	}
	if _, noticed := c.Notice(string(two)); !noticed || len(m.Running()) != 2 {
		t.Errorf("noticed: %v, %v", noticed, m.Running())
	}
	now = now.Add(time.Minute)
	if instances, disks, _, _ := c.Books(); len(instances) != 1 || len(disks) != 1 || len(m.Running()) != 1 {
		t.Errorf("after a minute: %v %v %v", instances, disks, m.Running())
	}
	// One that shuts itself down stays, and is paid for.
	m.Stop(string(one))
	if _, _, _, made := c.Books(); made != 2 || c.Instance(string(one))["status"] != "TERMINATED" {
		t.Errorf("%v", c.Instance(string(one)))
	}
	if errs := p.Start(t.Context(), []muster.InstanceID{one}); errs[0] != nil || len(m.Running()) != 1 {
		t.Errorf("%v %v", errs, m.Running())
	}
	if errs := p.Stop(t.Context(), []muster.InstanceID{one}); errs[0] != nil || len(m.Running()) != 0 {
		t.Errorf("%v %v", errs, m.Running())
	}
	if errs := p.Start(t.Context(), []muster.InstanceID{one}); errs[0] != nil || len(m.Running()) != 1 {
		t.Errorf("%v %v", errs, m.Running())
	}
	if errs := p.Destroy(t.Context(), []muster.InstanceID{one}); errs[0] != nil || len(m.Running()) != 0 {
		t.Errorf("%v %v", errs, m.Running())
	}
}

// A file with the key of a service account is enough to call the API.
func TestServiceAccount(t *testing.T) {
	c := gcetest.New(t, gcetest.Options{})
	file := c.CredentialsFile(c.URL)
	p := open(t, c, "o", func(cfg *Config) { cfg.Tokens, cfg.CredentialsFile = nil, file })
	if made := p.Create(t.Context(), []cloud.Intent{intent("a")}); made[0].Err != nil {
		t.Error(made[0].Err)
	}
	// What is signed for another account is refused, and its error has nothing of the key.
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, bytes.Replace(b, []byte("muster@"), []byte("mallory@"), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	p = open(t, c, "o", func(cfg *Config) { cfg.Tokens, cfg.CredentialsFile = nil, file })
	if _, err := p.List(t.Context(), ""); !muster.IsKind(err, muster.FaultAuth) || strings.Contains(err.Error(), "PRIVATE") {
		t.Errorf("%v", err)
	}
}
