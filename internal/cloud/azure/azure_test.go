package azure

import (
	"crypto/ed25519"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/azure/azuretest"
	"github.com/musterhq/muster/internal/cloud/cloudtest"
	"github.com/musterhq/muster/internal/cloud/driver"
)

// group is a stand-in of one resource group, in which several owners have machines.
type group struct{ *azuretest.Cloud }

func (g group) Open(t *testing.T, owner string) cloud.Provider {
	return started(t, g.Cloud, owner, nil)
}

// keyFile is a private key as the server has one.
func keyFile(t *testing.T) string {
	t.Helper()
	block, err := ssh.MarshalPrivateKey(ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)), "")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func started(t *testing.T, c *azuretest.Cloud, owner string, edit func(*Config)) *Provider {
	t.Helper()
	cfg := Config{Name: "az", Owner: owner, Subscription: azuretest.Subscription, ResourceGroup: azuretest.Group, Location: azuretest.Location,
		Subnet: azuretest.Subnet, Access: cloud.Access{KeyFile: keyFile(t)}, Endpoint: c.URL, Credential: azuretest.Credential{}, Poll: time.Millisecond}
	if edit != nil {
		edit(&cfg)
	}
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestConformance(t *testing.T) {
	cloudtest.Run(t, 10*time.Second, func(t *testing.T) cloudtest.Cloud {
		return group{azuretest.New(t, azuretest.Options{OperationTime: 5 * time.Millisecond})}
	})
}

// The suite holds as well where lists lack new machines.
func TestConformanceWithListsThatLag(t *testing.T) {
	cloudtest.Run(t, 10*time.Second, func(t *testing.T) cloudtest.Cloud {
		c := azuretest.New(t, azuretest.Options{OperationTime: time.Millisecond, Page: 2})
		play(t, c, "list hide after=1ms..30ms 40%")
		return group{c}
	})
}

func play(t *testing.T, c *azuretest.Cloud, text string) {
	t.Helper()
	if err := c.Play(text); err != nil {
		t.Fatal(err)
	}
}

func intent(token string) cloud.Intent {
	return cloud.Intent{Token: muster.Token(token), Node: "n1", Pool: "main", Offering: "Standard_D2s_v5", Zone: azuretest.Location, Market: muster.OnDemand,
		Labels: map[string]string{"team": "a", "not<a>tag": "x"}, Boot: cloud.Boot{UserData: muster.NewSecret("#cloud-config\n")}}
}

func make1(t *testing.T, p *Provider, in cloud.Intent) cloud.Created {
	t.Helper()
	return p.Create(t.Context(), []cloud.Intent{in})[0]
}

func list(t *testing.T, p *Provider) []cloud.Instance {
	t.Helper()
	var out []cloud.Instance
	for cursor := ""; ; {
		l, err := p.List(t.Context(), cursor)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, l.Instances...)
		if cursor = l.Next; cursor == "" {
			return out
		}
	}
}

func TestAMachineHasAllFromItsCreate(t *testing.T) {
	c := azuretest.New(t, azuretest.Options{})
	p := started(t, c, "o", func(c *Config) { c.Zones, c.Markets, c.PublicIP = []string{"2"}, []muster.Market{muster.Spot}, true })
	in := intent("t")
	in.Zone, in.Market = azuretest.Location+"-2", muster.Spot
	got := make1(t, p, in)
	if got.Err != nil || got.Instance.Failed != nil || got.Instance.Zone != in.Zone || got.Instance.Market != muster.Spot || got.Instance.Created == 0 {
		t.Fatalf("%+v", got)
	}
	raw, _ := c.Body(string(got.Instance.ID))
	var body struct {
		Zones      []string
		Tags       map[string]string
		Properties struct {
			Priority, EvictionPolicy string
			BillingProfile           struct{ MaxPrice float64 }
			OSProfile                struct{ CustomData, AdminUsername string }
			StorageProfile           struct{ ImageReference struct{ Version string } }
		}
	}
	if err := json.Unmarshal(raw, &body); err != nil {
		t.Fatal(err)
	}
	if v := body.Properties; v.Priority != "Spot" || v.EvictionPolicy != "Delete" || v.BillingProfile.MaxPrice != -1 || v.OSProfile.CustomData != "I2Nsb3VkLWNvbmZpZwo=" ||
		v.OSProfile.AdminUsername != "azureuser" || v.StorageProfile.ImageReference.Version != "0.20261101.1" || !slices.Equal(body.Zones, []string{"2"}) {
		t.Errorf("%s", raw)
	}
	if len(body.Tags) != 6 || body.Tags["team"] != "a" || body.Tags["muster-owner"] != "o" {
		t.Errorf("%v", body.Tags)
	}
	a, err := p.Access(t.Context(), got.Instance.ID)
	if err != nil || a.User != "azureuser" || a.Shutdown != "" || !strings.HasPrefix(a.Address, "198.51.") {
		t.Errorf("%+v, %v", a, err)
	}
	calls := c.Calls(azuretest.NICs)
	if _, err := p.Access(t.Context(), got.Instance.ID); err != nil || c.Calls(azuretest.NICs) != calls {
		t.Error("an address that is known is asked for again")
	}
	if errs := p.Destroy(t.Context(), []muster.InstanceID{got.Instance.ID}); errs[0] != nil {
		t.Error(errs[0])
	}
	if machines, parts, made := c.Books(); len(machines) != 0 || len(parts) != 0 || made != 1 {
		t.Errorf("%v, %v, %d", machines, parts, made)
	}
}

func TestALostAnswerMakesOneMachine(t *testing.T) {
	c := azuretest.New(t, azuretest.Options{})
	p := started(t, c, "o", nil)
	play(t, c, "create lose once\ncreate cut once")
	for range 2 {
		if got := make1(t, p, intent("t")); !muster.IsKind(got.Err, muster.FaultAmbiguous) {
			t.Fatalf("%+v", got)
		}
	}
	if got := make1(t, p, intent("t")); got.Err != nil || got.Instance.Tags.Token != "t" {
		t.Errorf("%+v", got)
	}
	if machines, _, made := c.Books(); len(machines) != 1 || made != 1 {
		t.Errorf("%v, %d", machines, made)
	}
}

// A machine that Azure accepted and had no place for is shown as failed, by the create, by lists, and
// to a server that came later.
func TestAnOperationThatFailsIsSeen(t *testing.T) {
	c := azuretest.New(t, azuretest.Options{OperationTime: 20 * time.Millisecond})
	p := started(t, c, "o", nil)
	play(t, c, "create fail AllocationFailed once")
	got := make1(t, p, intent("t"))
	if got.Err != nil {
		t.Fatal(got.Err)
	}
	want := muster.Scope{Provider: "az", Offering: "Standard_D2s_v5", Zone: azuretest.Location}
	check := func(f *muster.Fault) {
		t.Helper()
		if f == nil || f.Kind != muster.FaultCapacity || f.Scope != want || f.After != capacityAfter || !strings.Contains(f.Error(), "AllocationFailed") {
			t.Errorf("%+v", f)
		}
	}
	check(got.Instance.Failed)
	check(list(t, p)[0].Failed)
	later, calls := started(t, c, "o", nil), c.Calls(azuretest.Get)
	for range 2 {
		check(list(t, later)[0].Failed)
	}
	if n := c.Calls(azuretest.Get) - calls; n != 1 {
		t.Errorf("%d calls to learn why", n)
	}
	if errs := later.Destroy(t.Context(), []muster.InstanceID{got.Instance.ID}); errs[0] != nil {
		t.Error(errs[0])
	}
}

// Azure may have failed by the time it answers.
func TestACreateThatHasFailedAtOnce(t *testing.T) {
	c := azuretest.New(t, azuretest.Options{})
	p := started(t, c, "o", nil)
	play(t, c, "create fail AllocationFailed once")
	if got := make1(t, p, intent("t")); got.Err != nil || got.Instance.Failed == nil || got.Instance.Failed.Kind != muster.FaultCapacity {
		t.Errorf("%+v", got)
	}
}

// A start that fails for want of capacity is no failed create: the machine keeps its disk.
func TestAStartThatFailsIsNoFailedCreate(t *testing.T) {
	c := azuretest.New(t, azuretest.Options{})
	p := started(t, c, "o", nil)
	play(t, c, "start fail AllocationFailed once")
	got := make1(t, p, intent("t"))
	ids := []muster.InstanceID{got.Instance.ID}
	if errs := p.Stop(t.Context(), ids); errs[0] != nil {
		t.Fatal(errs[0])
	}
	if errs := p.Start(t.Context(), ids); !muster.IsKind(errs[0], muster.FaultCapacity) {
		t.Errorf("%v", errs)
	}
	if l := list(t, p); len(l) != 1 || l[0].Failed != nil {
		t.Errorf("%+v", l)
	}
	if errs := p.Start(t.Context(), ids); errs[0] != nil {
		t.Error(errs[0])
	}
}

func TestSpotMachinesAreNotStopped(t *testing.T) {
	c := azuretest.New(t, azuretest.Options{})
	p := started(t, c, "o", func(c *Config) { c.Markets = []muster.Market{muster.Spot} })
	in := intent("t")
	in.Market = muster.Spot
	got := make1(t, p, in)
	if errs := p.Stop(t.Context(), []muster.InstanceID{got.Instance.ID}); !muster.IsKind(errs[0], muster.FaultInvalid) || c.Calls(azuretest.Stop) != 0 {
		t.Errorf("%v", errs)
	}
}

func TestListsHavePages(t *testing.T) {
	c := azuretest.New(t, azuretest.Options{})
	p := started(t, c, "o", nil)
	var intents []cloud.Intent
	for i := range 12 {
		intents = append(intents, intent(fmt.Sprint("t", i)))
	}
	for _, g := range p.Create(t.Context(), intents) {
		if g.Err != nil {
			t.Fatal(g.Err)
		}
	}
	first, err := p.List(t.Context(), "")
	if err != nil || len(first.Instances) != 5 || first.Complete || !strings.HasPrefix(first.Next, "/subscriptions/") {
		t.Fatalf("%d, %q, %v", len(first.Instances), first.Next, err)
	}
	if all := list(t, p); len(all) != 12 {
		t.Errorf("%d", len(all))
	}
	for _, bad := range []string{"nonsense", "https://evil.example/x", "//evil.example/x"} {
		if _, err := p.List(t.Context(), bad); !muster.IsKind(err, muster.FaultTransient) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	// Credentials never go to another host, and a page that is lost is no end.
	c.Refuse(azuretest.List, http.StatusOK, nil, `{"value":[],"nextLink":"https://evil.example/x"}`)
	if _, err := p.List(t.Context(), ""); !muster.IsKind(err, muster.FaultTransient) || !strings.Contains(err.Error(), "another host") {
		t.Errorf("%v", err)
	}
}

// A group that is gone, or not to be seen, never reads as one without machines.
func TestAGroupThatIsGoneIsNotEmpty(t *testing.T) {
	c := azuretest.New(t, azuretest.Options{})
	p := started(t, c, "o", func(c *Config) { c.ResourceGroup = "other" })
	_, err := p.List(t.Context(), "")
	var f *muster.Fault
	if !errors.As(err, &f) || f.Kind != muster.FaultInvalid || f.Field != "resource_group" {
		t.Errorf("%+v", err)
	}
	all, err := p.Resolve(t.Context())
	if err != nil || len(all) != 1 || !strings.Contains(all[0].Problem, "az group create") {
		t.Errorf("%+v, %v", all, err)
	}
}

func TestLeftoversAreOursAndUnattached(t *testing.T) {
	c := azuretest.New(t, azuretest.Options{})
	p := started(t, c, "o", nil)
	other := started(t, c, "other", nil)
	c.AddPart("nic", p.partName("m-"+strings.Repeat("0", 24), partNIC), nil) // known by its name
	c.AddPart("nic", other.partName("m-"+strings.Repeat("0", 24), partNIC), nil)
	c.AddPart("disk", "mine", map[string]string{"muster-owner": "o"})
	c.AddPart("ip", "mine-too", map[string]string{"muster-owner": "o"})
	c.AddPart("disk", "theirs", map[string]string{"muster-owner": "other"})
	c.AddPart("disk", "nobodys", nil)
	play(t, c, "create orphan OperationNotAllowed once\ndelete leave once")
	if got := make1(t, p, intent("refused")); got.Err == nil {
		t.Fatal("it was made")
	}
	got := make1(t, p, intent("t"))
	left, err := p.Leftovers(t.Context())
	if err != nil || len(left) != 4 {
		t.Fatalf("%+v, %v", left, err)
	}
	if errs := p.Destroy(t.Context(), []muster.InstanceID{got.Instance.ID}); errs[0] != nil {
		t.Fatal(errs[0])
	}
	if left, err = p.Leftovers(t.Context()); err != nil || len(left) != 6 {
		t.Fatalf("%+v, %v", left, err)
	}
	for _, bad := range []cloud.Leftover{{Kind: kindDisk, ID: "theirs"}, {Kind: kindDisk, ID: "nobodys"}} {
		if errs := p.Remove(t.Context(), []cloud.Leftover{bad}); !muster.IsKind(errs[0], muster.FaultNotFound) {
			t.Errorf("%v: %v", bad, errs)
		}
	}
	for _, bad := range []cloud.Leftover{{Kind: "volume", ID: "1"}, {Kind: kindDisk, ID: "../x"}} {
		if errs := p.Remove(t.Context(), []cloud.Leftover{bad}); !muster.IsKind(errs[0], muster.FaultInvalid) {
			t.Errorf("%v: %v", bad, errs)
		}
	}
	for range 2 {
		for i, err := range p.Remove(t.Context(), left) {
			if err != nil {
				t.Errorf("%v: %v", left[i], err)
			}
		}
	}
	if _, parts, _ := c.Books(); len(parts) != 3 {
		t.Errorf("%v", parts)
	}
}

func TestOffers(t *testing.T) {
	c := azuretest.New(t, azuretest.Options{})
	p := started(t, c, "o", func(c *Config) {
		c.Zones, c.Markets, c.Disk = []string{Regional, "3"}, []muster.Market{muster.OnDemand, muster.Spot}, 64*muster.GiB
	})
	offers, err := p.Offers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]*muster.Offering{}
	for i := range offers {
		o := &offers[i]
		got[fmt.Sprintf("%s %s %s", o.Name, o.Zone, o.Market)] = o
	}
	// The two newest versions: v3 is not offered. E has no spot here.
	if len(got) != 2*(2+2+2)+2 || got["Standard_D2s_v3 westeurope on-demand"] != nil {
		t.Errorf("%d: %v", len(got), got)
	}
	o := got["Standard_D4s_v5 westeurope on-demand"]
	if o == nil || o.Price != 236575 || o.Weight != 4 || o.Family != "standardDSv5Family" || o.Capacity.CPU != 4000 || o.Attributes["arch"] != "amd64" || !o.Available {
		t.Errorf("%+v", o)
	}
	if s := got["Standard_D4s_v5 westeurope spot"]; s == nil || s.Price != 48575 || s.PriceCap != o.Price || s.Family != spotFamily {
		t.Errorf("%+v", s)
	}
	if z := got["Standard_D4s_v5 westeurope-3 on-demand"]; z == nil || z.Available {
		t.Errorf("a zone that this subscription may not use: %+v", z)
	}
	calls := c.Calls(azuretest.Prices)
	if _, err := p.Offers(t.Context()); err != nil || c.Calls(azuretest.Prices) != calls {
		t.Error("prices are read again at once")
	}
	arm := started(t, c, "o", func(c *Config) {
		c.Types, c.Prices.Table = []string{"*ps_v5"}, map[string]float64{"Standard_D2ps_v5": 0.05}
	})
	if all, err := arm.Offers(t.Context()); err != nil || len(all) != 1 || all[0].Attributes["arch"] != "arm64" || all[0].Price != 50000 {
		t.Errorf("%+v, %v", all, err)
	}
}

// GPUs have the model that the name of a size tells, their number and the memory of one.
func TestGPUs(t *testing.T) {
	c := azuretest.New(t, azuretest.Options{})
	p := started(t, c, "o", func(c *Config) { c.Types = []string{"Standard_N*"} })
	offers, err := p.Offers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := map[muster.OfferingName]string{}
	for _, o := range offers {
		got[o.Name] = fmt.Sprint(o.Devices, " ", o.Attributes[driver.AttributeGPUMemory])
	}
	want := map[muster.OfferingName]string{"Standard_NC4as_T4_v3": "[1 gpu T4] 16", "Standard_NC48ads_A100_v4": "[2 gpu A100-80GB] 80",
		"Standard_ND96asr_v4": "[8 gpu A100] 40", "Standard_NV12ads_A10_v5": "[1 gpu A10-8Q] 8"}
	if !maps.Equal(got, want) {
		t.Errorf("%v", got)
	}
	for size, want := range map[string]string{
		"Standard_NC6": "K80", "Standard_NC6s_v2": "P100", "Standard_NC24rs_v3": "V100", "Standard_ND40rs_v2": "V100-32GB", "Standard_ND6s": "P40",
		"Standard_ND96amsr_A100_v4": "A100-80GB", "Standard_NC40ads_H100_v5": "H100-94GB", "Standard_ND96isr_H100_v5": "H100", "Standard_ND96isr_H200_v5": "H200",
		"Standard_ND96isr_MI300X_v5": "MI300X", "Standard_NV36ads_A10_v5": "A10", "Standard_NV72ads_A10_v5": "A10", "Standard_NV12s_v3": "M60",
		"Standard_NV4as_v4": "MI25", "Standard_NG8ads_V620_v1": "", "Standard_D4s_v5": "", "Standard_ND128isr_NDR_GB200_v6": "GB200",
	} {
		if model, _ := driver.GPUModel(gpuOf(size)); model != want {
			t.Errorf("%s: %q", size, model)
		}
	}
}

// A failed start of a machine leaves other clouds' prices alone: a cloud without a list offers what
// the operator has priced.
func TestACloudWithoutAPriceList(t *testing.T) {
	c := azuretest.New(t, azuretest.Options{})
	c.Refuse(azuretest.Prices, http.StatusServiceUnavailable, nil, "")
	p := started(t, c, "o", func(c *Config) { c.Prices.Table = map[string]float64{"Standard_D2s_v5": 0.1} })
	if all, err := p.Offers(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("%+v, %v", all, err)
	}
	c.Refuse(azuretest.Prices, http.StatusServiceUnavailable, nil, "")
	if _, err := started(t, c, "o", nil).Offers(t.Context()); err == nil || !strings.Contains(err.Error(), "write them in prices") {
		t.Errorf("%v", err)
	}
}

func TestQuotasAreByFamily(t *testing.T) {
	c := azuretest.New(t, azuretest.Options{Quotas: map[string]int{"standardDSv5Family": 3, spotFamily: 0}})
	p := started(t, c, "o", func(c *Config) {
		c.Types, c.Markets = []string{"Standard_D?s_v5"}, []muster.Market{muster.OnDemand, muster.Spot}
	})
	if got := make1(t, p, intent("a")); got.Err != nil {
		t.Fatal(got.Err)
	}
	all, err := p.Quotas(t.Context())
	want := []cloud.Quota{{Family: spotFamily, Weighed: true}, {Family: "standardDSv5Family", Limit: 3, Used: 2, Weighed: true}}
	if err != nil || !slices.Equal(all, want) {
		t.Errorf("%+v, %v", all, err)
	}
	for market, family := range map[muster.Market]string{muster.OnDemand: "standardDSv5Family", muster.Spot: spotFamily} {
		in := intent("b")
		in.Market = market
		got := make1(t, p, in)
		var f *muster.Fault
		if !errors.As(got.Err, &f) || f.Kind != muster.FaultQuota || f.Scope != (muster.Scope{Provider: "az", Family: family}) || (f.After > 0) != (market == muster.Spot) {
			t.Errorf("%+v", got.Err)
		}
	}
}

func TestResolveNamesWhatIsWrong(t *testing.T) {
	c := azuretest.New(t, azuretest.Options{Quotas: map[string]int{"standardESv5Family": 0}})
	p := started(t, c, "o", func(c *Config) {
		c.Subnet, c.Image, c.Access.KeyFile = azuretest.Subnet+"2", "Debian:debian-12:none:latest", "/nowhere"
	})
	all, err := p.Resolve(t.Context())
	var bad []string
	for _, r := range all {
		if r.Problem != "" {
			bad = append(bad, r.What)
		}
	}
	if err != nil || !slices.Equal(bad, []string{"subnet", "ssh key", "image for amd64", "quota"}) {
		t.Errorf("%v of %+v, %v", bad, all, err)
	}
	c.Refuse(azuretest.List, http.StatusForbidden, nil, coded("AuthorizationFailed", "no"))
	if all, err := p.Resolve(t.Context()); err != nil || len(all) != 1 || !strings.Contains(all[0].Problem, "docs/clouds/azure.md") {
		t.Errorf("%+v, %v", all, err)
	}
}

// An image of one architecture beside sizes of two is seen before a machine does not boot.
func TestAnImageOfAnotherArchitectureIsSeen(t *testing.T) {
	c := azuretest.New(t, azuretest.Options{})
	for image, want := range map[string]string{"": "", "Debian:debian-12:12-gen2:latest": "image for arm64: it is for x64", "Debian:debian-12:12-arm64:0.20261101.1": "image for amd64: it is for Arm64"} {
		p := started(t, c, "o", func(c *Config) {
			c.Types = []string{"Standard_D2ps_v5", "Standard_D2s_v5"}
			if image != "" {
				c.Image = image
			}
		})
		all, err := p.Resolve(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, r := range all {
			if r.Problem != "" {
				got += r.What + ": " + r.Problem
			}
		}
		if want == "" && got != "" || !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q", image, got)
		}
	}
}

func TestConfigIsRefusedInSentences(t *testing.T) {
	for want, edit := range map[string]func(*Config){
		"name and owner are missing": func(c *Config) { c.Owner = "" },
		"az account list prints":     func(c *Config) { c.Subscription = "x" },
		"az group create":            func(c *Config) { c.ResourceGroup = "" },
		"as westeurope":              func(c *Config) { c.Location = "West Europe" },
		"subnet show prints it":      func(c *Config) { c.Subnet = "nodes" },
		"nsg show prints it":         func(c *Config) { c.SecurityGroup = "sg" },
		"no user of that name":       func(c *Config) { c.Access.User = "root" },
		"without a key":              func(c *Config) { c.Access.KeyFile = "" },
		"write its number":           func(c *Config) { c.Zones = []string{"a"} },
		"debian-12, debian-13":       func(c *Config) { c.Image = "windows" },
	} {
		cfg := Config{Name: "az", Owner: "o", Subscription: azuretest.Subscription, ResourceGroup: "g", Location: "westeurope", Subnet: azuretest.Subnet,
			Access: cloud.Access{KeyFile: "/key"}, Credential: azuretest.Credential{}}
		edit(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "provider az: ") {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func TestAnotherMachineOfTheNameIsLeftAlone(t *testing.T) {
	c := azuretest.New(t, azuretest.Options{})
	p := started(t, c, "o", nil)
	got := make1(t, p, intent("t"))
	c.Retag(string(got.Instance.ID), nil)
	again := started(t, c, "o", nil)
	if got := make1(t, again, intent("t")); !muster.IsKind(got.Err, muster.FaultInvalid) || !strings.Contains(got.Err.Error(), "not the tags") {
		t.Errorf("%+v", got)
	}
	if errs := again.Destroy(t.Context(), []muster.InstanceID{got.Instance.ID}); !muster.IsKind(errs[0], muster.FaultNotFound) || c.Calls(azuretest.Delete) != 0 {
		t.Errorf("%v", errs)
	}
}

func TestScriptsAreChecked(t *testing.T) {
	c := azuretest.New(t, azuretest.Options{})
	for _, bad := range []string{"create", "create refuse", "create explode", "jump lose", "list fail X", "get leave", "create hide after=1s", "create lose sometimes"} {
		if err := c.Play(bad); err == nil || !strings.Contains(err.Error(), "line 1") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// What is thrown at a driver in a run of creates and destroys leaves nothing behind in the end.
func TestNothingIsLeftAfterTrouble(t *testing.T) {
	c := azuretest.New(t, azuretest.Options{OperationTime: time.Millisecond, Seed: 7})
	p := started(t, c, "o", nil)
	play(t, c, "create lose 10%\ncreate cut 10%\ncreate fail ZonalAllocationFailed n%7=1\ncreate orphan QuotaExceeded 10%\ncreate throttle 10%\n"+
		"delete leave 20%\ndelete html 10%\nget throttle 5%\nlist html 10%\nlist hide after=1ms..5ms\nnics refuse InternalServerError 10%")
	var intents []cloud.Intent
	for i := range 40 {
		intents = append(intents, intent(fmt.Sprint("t", i)))
	}
	for range 4 {
		p.Create(t.Context(), intents)
	}
	if machines, _, made := c.Books(); len(machines) != made || made < 30 {
		t.Errorf("%d of %d", len(machines), made)
	}
	until(t, func() bool {
		machines, _, _ := c.Books()
		for _, name := range machines {
			p.Destroy(t.Context(), []muster.InstanceID{muster.InstanceID(name)})
		}
		return len(machines) == 0
	})
	until(t, func() bool {
		if left, err := p.Leftovers(t.Context()); err == nil {
			p.Remove(t.Context(), left)
		}
		_, parts, _ := c.Books()
		return len(parts) == 0
	})
}

// until repeats a look until it succeeds. The test's own time limit ends one that never does.
func until(t *testing.T, ok func() bool) {
	t.Helper()
	for !ok() {
		if t.Context().Err() != nil {
			t.Fatal("the test has ended")
		}
	}
}

func coded(code, message string) string {
	return fmt.Sprintf(`{"error":{"code":%q,"message":%q}}`, code, message)
}
