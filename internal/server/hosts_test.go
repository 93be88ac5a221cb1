package server

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/static"
	"github.com/musterhq/muster/internal/control/link/linktest"
	"github.com/musterhq/muster/internal/state"
)

// noHosts does nothing to hosts.
type noHosts struct{}

func (noHosts) Clear(context.Context, cloud.Access, muster.NodeID) error { return nil }

func (noHosts) Measure(context.Context, cloud.Access) (muster.Resources, string, error) {
	return muster.Resources{CPU: 4000, Memory: 8 * muster.GiB, Disk: muster.GiB}, "arm64", nil
}

// A leader gives hosts out by what the log says, not by what is in its data directory: the next one,
// with another directory, sees the same.
func TestNextLeaderKnowsWhoHasWhichHost(t *testing.T) {
	log, err := linktest.NewLedger("c1")
	if err != nil {
		t.Fatal(err)
	}
	leader := func(dir string) *static.Provider {
		t.Helper()
		p, err := static.New(static.Config{Name: "lab", Owner: "c1", Dir: dir, Hosts: noHosts{}, Records: hosts{"lab", log.S, log},
			Offerings: []muster.Offering{{Name: "rack"}},
			List: []static.Host{
				{Name: "h0", Offering: "rack", Access: cloud.Access{Address: "a0", KeyFile: "/k", Jump: &cloud.Jump{Address: "j", KeyFile: "/j"}}},
				{Name: "h1", Offering: "rack", Access: cloud.Access{Address: "a1"}}, {Name: "own", Access: cloud.Access{Address: "a2"}},
			}})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	create := func(p *static.Provider, token string) cloud.Created {
		return p.Create(t.Context(), []cloud.Intent{{Token: muster.Token(token), Node: muster.NodeID("n" + token), Pool: "p", Offering: "rack"}})[0]
	}
	dir := t.TempDir()
	b, err := json.Marshal(static.Record{Access: cloud.Access{Address: "a1"}, Instance: cloud.Instance{ID: "h1-old", Tags: cloud.Tags{Owner: "c1", Token: "told", Node: "nold"}, Offering: "rack", Market: muster.OnDemand, Created: 7}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "host-h1.json"), b, 0o600); err != nil {
		t.Fatal(err)
	}
	// With a log that an older server of the cluster could not read, nothing is known.
	first := leader(dir)
	if list, err := first.List(t.Context(), ""); !muster.IsKind(err, muster.FaultUnavailable) || list.Complete || !strings.Contains(err.Error(), "format 7") {
		t.Errorf("%+v, %v", list, err)
	}
	if _, _, err := log.Propose(t.Context(), &state.FormatRaised{Format: state.FormatNewest}); err != nil {
		t.Fatal(err)
	}
	taken := create(first, "t1")
	if taken.Err != nil {
		t.Fatal(taken.Err)
	}
	if offers, err := first.Offers(t.Context()); err != nil || len(offers) != 2 {
		t.Fatalf("%+v, %v", offers, err)
	}
	tags := taken.Instance.Tags
	tags.Intent = muster.NodeHold
	if err := first.SetTags(t.Context(), taken.Instance.ID, tags); err != nil {
		t.Fatal(err)
	}
	first.Wait()

	second := leader(t.TempDir())
	list, err := second.List(t.Context(), "")
	if err != nil || !list.Complete || len(list.Instances) != 2 || list.Instances[0].ID != taken.Instance.ID || list.Instances[0].Tags != tags || list.Instances[1].Created != 7 {
		t.Fatalf("%+v, %v", list, err)
	}
	if way, err := second.Access(t.Context(), taken.Instance.ID); err != nil || way.Address != "a0" || way.Jump == nil || way.Jump.KeyFile != "/j" {
		t.Errorf("%+v, %v", way, err)
	}
	if again := create(second, "t1"); again.Err != nil || again.Instance.ID != taken.Instance.ID {
		t.Errorf("the token has another host now: %+v", again)
	}
	if full := create(second, "t2"); !muster.IsKind(full.Err, muster.FaultCapacity) {
		t.Errorf("%+v", full)
	}
	if err := second.Destroy(t.Context(), []muster.InstanceID{"h1-old"})[0]; err != nil {
		t.Fatal(err)
	}
	// The first, which leads no more and does not know it, cannot give the host to another.
	if got := create(second, "t3"); got.Err != nil || !strings.HasPrefix(string(got.Instance.ID), "h1-") {
		t.Errorf("%+v", got)
	}
	if got := create(first, "t4"); !muster.IsKind(got.Err, muster.FaultCapacity) {
		t.Errorf("%+v", got)
	}
	if err := log.Latest().Check(); err != nil {
		t.Error(err)
	}
	found, err := hosts{"lab", log.S, log}.Found()
	if err != nil || found["own"].Arch != "arm64" {
		t.Errorf("%+v, %v", found, err)
	}
}
