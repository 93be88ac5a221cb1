package openstack

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/cloudtest"
	"github.com/musterhq/muster/internal/cloud/driver"
	"github.com/musterhq/muster/internal/cloud/openstack/openstacktest"
)

// project is a stand-in of one project, in which several owners have servers.
type project struct{ *openstacktest.Project }

func (c project) Open(t *testing.T, owner string) cloud.Provider {
	return open(t, c.Project, owner, nil)
}

var prices = map[string]float64{"m1.small": 0.02, "m1.large": 0.08, "v1.large": 0.08, "g1.large": 2}

func open(t *testing.T, c *openstacktest.Project, owner string, edit func(*Config)) *Provider {
	t.Helper()
	cfg := Config{Name: "os", Owner: owner, Cloud: openstacktest.Cloud, CloudsFile: c.CloudsFile(), Network: openstacktest.Network,
		Image: openstacktest.Image, Prices: driver.Prices{Table: prices}, Access: cloud.Access{KeyFile: "/key"}, Poll: time.Millisecond}
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
	for name, options := range map[string]openstacktest.Options{
		"": {}, "slow": {Build: 5 * time.Millisecond, Page: 1},
	} {
		t.Run("cloud"+name, func(t *testing.T) {
			cloudtest.Run(t, 10*time.Second, func(t *testing.T) cloudtest.Cloud {
				return project{openstacktest.New(t, options)}
			})
		})
	}
}

func intent(token string) cloud.Intent {
	return cloud.Intent{Token: muster.Token(token), Node: "n1", Pool: "main", Offering: "m1.large", Zone: "az1", Market: muster.OnDemand,
		Labels: map[string]string{"team": "a", "long": strings.Repeat("x", 256)}, Boot: cloud.Boot{UserData: muster.NewSecret("#cloud-config\n")}}
}

func make1(t *testing.T, p *Provider, token string) cloud.Created {
	t.Helper()
	return p.Create(t.Context(), []cloud.Intent{intent(token)})[0]
}

func made(t *testing.T, p *Provider, token string) cloud.Instance {
	t.Helper()
	got := make1(t, p, token)
	if got.Err != nil {
		t.Fatal(got.Err)
	}
	return got.Instance
}

func list(t *testing.T, p *Provider) []cloud.Instance {
	t.Helper()
	l, err := p.List(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	return l.Instances
}

func TestAServerHasAllFromItsCreate(t *testing.T) {
	c := openstacktest.New(t, openstacktest.Options{})
	p := open(t, c, "o", func(c *Config) { c.SecurityGroups = []string{"default"} })
	in := made(t, p, "t")
	s, _ := c.Server(string(in.ID))
	if s.UserData != "#cloud-config\n" || s.Metadata["team"] != "a" || s.Metadata["muster-owner"] != "o" || len(s.Metadata) != 7 ||
		!slices.Equal(s.Tags, []string{"muster-owner:o"}) || s.Volume || s.Zone != "az1" {
		t.Errorf("%+v", s)
	}
	calls := c.Calls("GET /servers/{id}")
	a, err := p.Access(t.Context(), in.ID)
	if err != nil || a.User != "debian" || a.KeyFile != "/key" || a.Address != s.Address {
		t.Errorf("%+v, %v", a, err)
	}
	if c.Calls("GET /servers/{id}") != calls {
		t.Error("an address that is known is asked for again")
	}
	if errs := p.Destroy(t.Context(), []muster.InstanceID{in.ID}); errs[0] != nil {
		t.Error(errs[0])
	}
	if servers, _, pairs := c.Books(); len(servers) != 0 || len(pairs) != 0 {
		t.Errorf("%v, %v are left", servers, pairs)
	}
}

func TestAFlavorWithoutADiskStartsFromAVolume(t *testing.T) {
	c := openstacktest.New(t, openstacktest.Options{})
	p := open(t, c, "o", nil)
	in := intent("t")
	in.Offering = "v1.large"
	got := p.Create(t.Context(), []cloud.Intent{in})[0]
	if got.Err != nil {
		t.Fatal(got.Err)
	}
	if s, _ := c.Server(string(got.Instance.ID)); !s.Volume {
		t.Errorf("%+v", s)
	}
}

func TestALostAnswerMakesOneServer(t *testing.T) {
	c := openstacktest.New(t, openstacktest.Options{})
	p := open(t, c, "o", nil)
	c.Lose(openstacktest.CreateServer)
	if got := make1(t, p, "t"); !muster.IsKind(got.Err, muster.FaultAmbiguous) {
		t.Fatalf("%+v", got)
	}
	if in := made(t, p, "t"); in.Tags.Token != "t" {
		t.Errorf("%+v", in)
	}
	if ever := c.Ever(); len(ever) != 1 {
		t.Errorf("%v", ever)
	}
}

func TestALockOfADeadServerIsTakenOver(t *testing.T) {
	c := openstacktest.New(t, openstacktest.Options{})
	p := open(t, c, "o", nil)
	name := driver.InstanceName("o", "t")
	c.AddPair(name, time.Minute)
	if got := make1(t, p, "t"); !muster.IsKind(got.Err, muster.FaultAmbiguous) {
		t.Errorf("%+v", got)
	}
	c.AddPair(name, lockLife+time.Second)
	made(t, p, "t")
	if servers, _, pairs := c.Books(); len(servers) != 1 || len(pairs) != 0 {
		t.Errorf("%v, %v", servers, pairs)
	}
}

// A server of Muster that was killed while it made a server goes on a minute later, since nobody else
// has its lock. To another server of Muster the lock is that of one that may live.
func TestALockOfThisServer(t *testing.T) {
	c := openstacktest.New(t, openstacktest.Options{})
	as := func(server string) *Provider {
		return open(t, c, "o", func(c *Config) { c.Server = server })
	}
	name := driver.InstanceName("o", "t")
	const lock, unlock = "POST /os-keypairs", "DELETE /os-keypairs/{id}"
	// It dies before it sends the create, and its lock stays.
	c.Refuse(unlock, http.StatusBadGateway, nil, "")
	c.Refuse(openstacktest.CreateServer, http.StatusBadGateway, nil, "")
	if got := make1(t, as("s1"), "t"); !muster.IsKind(got.Err, muster.FaultAmbiguous) {
		t.Fatalf("%+v", got)
	}
	for _, row := range []struct {
		server string
		more   time.Duration
		want   string
	}{
		{"s1", 0, "this server was ended while it made it, and tries again in "},
		{"s2", 0, "another server of Muster makes it now"},
		{"", 0, "another server of Muster makes it now"},
		{"s2", ownLockLife + time.Second, "another server of Muster makes it now"},
	} {
		c.Age(name, row.more)
		if got := make1(t, as(row.server), "t"); !muster.IsKind(got.Err, muster.FaultAmbiguous) || !strings.Contains(got.Err.Error(), row.want) {
			t.Errorf("as %q: %+v", row.server, got)
		}
	}
	locks := c.Calls(lock)
	made(t, as("s1"), "t")
	if servers, _, pairs := c.Books(); len(servers) != 1 || len(pairs) != 0 || c.Calls(lock) != locks+2 {
		t.Errorf("%v, %v, %d locks", servers, pairs, c.Calls(lock)-locks)
	}
}

// A lock whose server was made is met by no other create, so it is swept, as soon as nobody can hold
// it. Key pairs of other owners, and of people, are nobody's business.
func TestALockThatIsLeftIsSwept(t *testing.T) {
	c := openstacktest.New(t, openstacktest.Options{})
	p, other := open(t, c, "o", nil), open(t, c, "other", nil)
	lose := func(p *Provider, token string) string {
		c.Refuse("DELETE /os-keypairs/{id}", http.StatusBadGateway, nil, "")
		made(t, p, token)
		return driver.InstanceName(p.cfg.Owner, muster.Token(token))
	}
	name, foreign := lose(p, "t"), lose(other, "t")
	c.AddPair("m-0123456789abcdef01234567", time.Hour)
	c.AddPair("alice", time.Hour)
	want := cloud.Leftover{Kind: kindPair, ID: name}
	if left, err := p.Leftovers(t.Context()); err != nil || len(left) != 1 || left[0] != want {
		t.Fatalf("%v, %v", left, err)
	}
	// A create may hold it still.
	if errs := p.Remove(t.Context(), []cloud.Leftover{want}); !muster.IsKind(errs[0], muster.FaultNotFound) {
		t.Errorf("%v", errs)
	}
	c.Age(name, lockLife+time.Second)
	c.Age(foreign, lockLife+time.Second)
	errs := p.Remove(t.Context(), []cloud.Leftover{want, want, {Kind: kindPair, ID: foreign}, {Kind: kindPair, ID: "m-0123456789abcdef01234567"}, {Kind: kindPair, ID: "alice"}})
	if errs[0] != nil || errs[1] != nil || !muster.IsKind(errs[2], muster.FaultNotFound) || !muster.IsKind(errs[3], muster.FaultNotFound) || !muster.IsKind(errs[4], muster.FaultInvalid) {
		t.Errorf("%v", errs)
	}
	if _, _, pairs := c.Books(); len(pairs) != 3 || slices.Contains(pairs, name) {
		t.Errorf("%v", pairs)
	}
}

func TestABuildThatFailsIsSeen(t *testing.T) {
	here := muster.Scope{Provider: "os", Offering: "m1.large", Zone: "az1", Market: muster.OnDemand}
	c := openstacktest.New(t, openstacktest.Options{Build: 5 * time.Millisecond, Script: "novalidhost zone=az1"})
	p := open(t, c, "o", nil)
	in := made(t, p, "t")
	if f := in.Failed; f == nil || f.Kind != muster.FaultCapacity || f.Scope != here || !strings.Contains(f.Error(), "No valid host") {
		t.Errorf("%+v", in.Failed)
	}
	if l := list(t, open(t, c, "o", nil)); len(l) != 1 || l[0].Failed == nil {
		t.Errorf("another server sees %+v", l)
	}
	if idle := c.Idle(); len(idle) != 0 {
		t.Errorf("the script did nothing: %v", idle)
	}
	// One that ran once may run still.
	ok := intent("u")
	ok.Zone = "az2"
	ran := p.Create(t.Context(), []cloud.Intent{ok})[0].Instance
	c.Change(string(ran.ID), func(s *openstacktest.Server) { s.Status = "ERROR" })
	for _, i := range list(t, p) {
		if i.ID == ran.ID && i.Failed != nil {
			t.Errorf("%+v", i.Failed)
		}
	}
}

func TestFaultsOfServers(t *testing.T) {
	p := open(t, openstacktest.New(t, openstacktest.Options{}), "o", nil)
	account, here := muster.Scope{Provider: "os"}, muster.Scope{Provider: "os", Offering: "m1.large", Zone: "az1", Market: muster.OnDemand}
	for text, want := range map[string]struct {
		kind  muster.FaultKind
		scope muster.Scope
	}{
		"No valid host was found. There are not enough hosts available.":                        {muster.FaultCapacity, here},
		"Exceeded maximum number of retries. Exhausted all hosts available for retrying build":  {muster.FaultCapacity, here},
		"Build of instance x aborted: Failed to allocate the network(s), not rescheduling.":     {muster.FaultCapacity, here},
		"Build of instance x aborted: No more IP addresses available on network y.":             {muster.FaultCapacity, account},
		"Build of instance x aborted: VolumeSizeExceedsAvailableQuota: exceeds gigabytes quota": {muster.FaultQuota, account},
		"Maximum number of ports exceeded":                                                      {muster.FaultQuota, account},
		"Flavor's disk is too small for requested image.":                                       {muster.FaultInvalid, muster.Scope{}},
		"Image x is unacceptable: it is no disk":                                                {muster.FaultInvalid, muster.Scope{}},
		"Build of instance x aborted: MessagingTimeout":                                         {muster.FaultTransient, muster.Scope{}},
		"": {muster.FaultTransient, muster.Scope{}},
	} {
		if f := p.buildFault("i", "m1.large", "az1", text); f.Kind != want.kind || f.Scope != want.scope || !strings.Contains(f.Error(), text) {
			t.Errorf("%q: %s of %s: %v", text, f.Kind, f.Scope, f)
		}
	}
}

func TestACellThatIsDownMakesAListIncomplete(t *testing.T) {
	c := openstacktest.New(t, openstacktest.Options{Page: 2})
	p := open(t, c, "o", nil)
	for i := range 4 {
		made(t, p, "t"+strconv.Itoa(i))
	}
	if err := c.Play("down 2x"); err != nil {
		t.Fatal(err)
	}
	first, err := p.List(t.Context(), "")
	if err != nil || first.Complete || first.Next == "" || len(first.Instances) != 1 {
		t.Fatalf("%+v, %v", first, err)
	}
	// The second page has a hole of its own; the third list has none.
	second, err := p.List(t.Context(), first.Next)
	if err != nil || second.Complete || second.Next != "" {
		t.Errorf("%+v, %v", second, err)
	}
	if first, err = p.List(t.Context(), ""); err != nil || len(first.Instances) != 2 {
		t.Fatalf("%+v, %v", first, err)
	}
	if last, err := p.List(t.Context(), first.Next); err != nil || !last.Complete {
		t.Errorf("%+v, %v", last, err)
	}
	// A hole of an earlier page counts, too.
	if err := c.Play("down once"); err != nil {
		t.Fatal(err)
	}
	first, _ = p.List(t.Context(), "")
	if last, err := p.List(t.Context(), first.Next); err != nil || last.Complete || last.Next != "" || len(last.Instances) != 2 {
		t.Errorf("%+v, %v", last, err)
	}
}

func TestCursors(t *testing.T) {
	c := openstacktest.New(t, openstacktest.Options{Page: 1})
	p := open(t, c, "o", nil)
	made(t, p, "t")
	made(t, p, "u")
	first, err := p.List(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	if errs := p.Destroy(t.Context(), []muster.InstanceID{first.Instances[0].ID}); errs[0] != nil {
		t.Fatal(errs[0])
	}
	for _, cursor := range []string{first.Next, "nonsense"} {
		if _, err := p.List(t.Context(), cursor); !muster.IsKind(err, muster.FaultTransient) {
			t.Errorf("%s: %v", cursor, err)
		}
	}
}

func TestATokenThatEndsIsRenewedOnce(t *testing.T) {
	c := openstacktest.New(t, openstacktest.Options{})
	p := open(t, c, "o", nil)
	in := made(t, p, "t")
	c.Revoke(false)
	if l := list(t, p); len(l) != 1 {
		t.Errorf("%+v", l)
	}
	c.Revoke(true)
	if _, err := p.List(t.Context(), ""); !muster.IsKind(err, muster.FaultAuth) {
		t.Errorf("%v", err)
	}
	if got := make1(t, p, "u"); !muster.IsKind(got.Err, muster.FaultAuth) {
		t.Errorf("%v", got.Err)
	}
	if errs := p.Destroy(t.Context(), []muster.InstanceID{in.ID}); !muster.IsKind(errs[0], muster.FaultAuth) {
		t.Errorf("%v", errs[0])
	}
}

func TestStuckLockedAndSoftDeletedServers(t *testing.T) {
	c := openstacktest.New(t, openstacktest.Options{})
	p := open(t, c, "o", nil)
	stuck, locked, soft, going := made(t, p, "a"), made(t, p, "b"), made(t, p, "c"), made(t, p, "d")
	c.Change(string(stuck.ID), func(s *openstacktest.Server) { s.Status, s.Stuck = "ERROR", true })
	c.Change(string(locked.ID), func(s *openstacktest.Server) { s.Locked = true })
	c.Change(string(soft.ID), func(s *openstacktest.Server) { s.Status = "SOFT_DELETED" })
	c.Change(string(going.ID), func(s *openstacktest.Server) { s.Task = "deleting" })
	if errs := p.Destroy(t.Context(), []muster.InstanceID{stuck.ID, locked.ID}); errs[0] != nil || !muster.IsKind(errs[1], muster.FaultInvalid) ||
		!strings.Contains(errs[1].Error(), "openstack server unlock") {
		t.Errorf("%v", errs)
	}
	if l := list(t, p); len(l) != 2 {
		t.Errorf("%+v", l)
	}
	if got := make1(t, p, "d"); !muster.IsKind(got.Err, muster.FaultTransient) {
		t.Errorf("a token whose server is being deleted: %+v", got)
	}
}

func TestLeftoversAreOursAndUnattached(t *testing.T) {
	c := openstacktest.New(t, openstacktest.Options{})
	p := open(t, c, "o", nil)
	var mine []string
	for _, kind := range []string{"volume", "port", "floatingip"} {
		mine = append(mine, c.Add(openstacktest.Thing{Kind: kind, Owner: "o"}))
		c.Add(openstacktest.Thing{Kind: kind, Owner: "o", Attached: true})
		c.Add(openstacktest.Thing{Kind: kind, Owner: "other"})
		c.Add(openstacktest.Thing{Kind: kind})
	}
	left, err := p.Leftovers(t.Context())
	if err != nil || len(left) != 3 || slices.ContainsFunc(left, func(l cloud.Leftover) bool { return l.Created == 0 || !slices.Contains(mine, l.ID) }) {
		t.Fatalf("%+v, %v", left, err)
	}
	_, things, _ := c.Books()
	for _, id := range things {
		for _, kind := range []string{kindVolume, kindPort, kindFloatingIP} {
			if !slices.Contains(mine, id) {
				if errs := p.Remove(t.Context(), []cloud.Leftover{{Kind: kind, ID: id}}); errs[0] != nil && !muster.IsKind(errs[0], muster.FaultNotFound) {
					t.Errorf("%s %s: %v", kind, id, errs[0])
				}
			}
		}
	}
	for range 2 {
		for _, err := range p.Remove(t.Context(), left) {
			if err != nil {
				t.Error(err)
			}
		}
	}
	if _, things, _ := c.Books(); len(things) != 9 {
		t.Errorf("%v", things)
	}
	if errs := p.Remove(t.Context(), []cloud.Leftover{{Kind: "router", ID: mine[0]}, {Kind: kindPort, ID: "../x"}}); !muster.IsKind(errs[0], muster.FaultInvalid) || !muster.IsKind(errs[1], muster.FaultInvalid) {
		t.Errorf("%v", errs)
	}
}

func TestOffersQuotasAndResolve(t *testing.T) {
	c := openstacktest.New(t, openstacktest.Options{MaxServers: 1})
	p := open(t, c, "o", nil)
	offers, err := p.Offers(t.Context())
	if err != nil || len(offers) != 6 || slices.ContainsFunc(offers, func(o muster.Offering) bool { return o.Name == "g1.large" || o.Zone == "az3" }) {
		t.Fatalf("%+v, %v", offers, err)
	}
	if o := offers[2]; o.Name != "m1.large" || o.Price != 80000 || o.Capacity.CPU != 4000 || o.Capacity.Disk != 72*muster.GiB || o.Weight != 4 {
		t.Errorf("%+v", o)
	}
	if named, err := open(t, c, "o", func(c *Config) { c.Types = []string{"g1.*"} }).Offers(t.Context()); err != nil || len(named) != 2 {
		t.Errorf("%+v, %v", named, err)
	}
	problems := func(p *Provider) (out []string) {
		t.Helper()
		all, err := p.Resolve(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range all {
			if r.Problem != "" {
				out = append(out, r.What)
			}
		}
		return out
	}
	if got := problems(p); len(got) != 0 {
		t.Errorf("%v", got)
	}
	made(t, p, "t")
	if q, err := p.Quotas(t.Context()); err != nil || len(q) != 1 || q[0] != (cloud.Quota{Limit: 1, Used: 1}) {
		t.Errorf("%+v, %v", q, err)
	}
	bad := open(t, c, "o", func(c *Config) {
		c.Network, c.Image, c.Prices.Table = "none", "debian-1", nil
	})
	if got := problems(bad); !slices.Equal(got, []string{"network", "image", "offerings", "quota"}) {
		t.Errorf("%v", got)
	}
	c.Revoke(true)
	if got := problems(p); !slices.Equal(got, []string{"cloud"}) {
		t.Errorf("%v", got)
	}
}

// The architecture is what the flavor says, else what the image is for; a flavor that does not boot the
// image is not offered. GPUs have the model that the alias names.
func TestArchitecturesAndGPUs(t *testing.T) {
	c := openstacktest.New(t, openstacktest.Options{})
	table := map[string]float64{"m1.small": 1, "r1.arm": 1, "g1.large": 1, "g2.large": 1, "v2.gpu": 1, "n1.fast": 1}
	for image, want := range map[string]string{
		openstacktest.Image:      "m1.small amd64 [] g1.large amd64 [1 gpu A100] r1.arm arm64 [] g2.large amd64 [2 gpu A100-80GB] v2.gpu amd64 [1 gpu VGPU] n1.fast amd64 []",
		openstacktest.ImageARM:   "m1.small arm64 [] g1.large arm64 [1 gpu A100] r1.arm arm64 [] g2.large arm64 [2 gpu A100-80GB] v2.gpu arm64 [1 gpu VGPU] n1.fast arm64 []",
		openstacktest.ImageARMID: "m1.small arm64 [] g1.large arm64 [1 gpu A100] r1.arm arm64 [] g2.large arm64 [2 gpu A100-80GB] v2.gpu arm64 [1 gpu VGPU] n1.fast arm64 []",
		openstacktest.ImageAMD:   "m1.small amd64 [] g1.large amd64 [1 gpu A100] g2.large amd64 [2 gpu A100-80GB] v2.gpu amd64 [1 gpu VGPU] n1.fast amd64 []",
	} {
		p := open(t, c, "o", func(c *Config) { c.Image, c.Types, c.Prices.Table = image, driver.Globs{"*"}, table })
		offers, err := p.Offers(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, o := range offers {
			if o.Zone == "az1" {
				got = append(got, fmt.Sprint(o.Name, " ", o.Attributes["arch"], " ", o.Devices))
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %s", image, strings.Join(got, " "))
		}
		all, err := p.Resolve(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		wrong := slices.ContainsFunc(all, func(r cloud.Resolved) bool {
			return r.Value == "r1.arm" && strings.HasPrefix(r.Problem, "it is for arm64, and the image debian-12-amd64 for amd64: name an image for arm64")
		})
		if wrong != (image == openstacktest.ImageAMD) {
			t.Errorf("%s: %+v", image, all)
		}
	}
	// Flavors that nobody named are those without special parts.
	offers, err := open(t, c, "o", func(c *Config) { c.Prices.Table = table }).Offers(t.Context())
	if err != nil || slices.ContainsFunc(offers, func(o muster.Offering) bool { return len(o.Devices) > 0 || o.Name == "n1.fast" }) {
		t.Errorf("%+v, %v", offers, err)
	}
}

func TestConfigIsRefusedInSentences(t *testing.T) {
	file := filepath.Join(t.TempDir(), "clouds.yaml")
	if err := os.WriteFile(file, []byte("clouds:\n  acme: {auth: {auth_url: 'http://x', password: hidden}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	whole := Config{Name: "os", Owner: "o", Cloud: "acme", CloudsFile: file, Network: "n", Image: "i"}
	for want, edit := range map[string]func(*Config){
		"name and owner are missing":  func(c *Config) { c.Name = "" },
		"cloud is missing":            func(c *Config) { c.Cloud = "" },
		"network is missing":          func(c *Config) { c.Network = "" },
		"image is missing":            func(c *Config) { c.Image = "" },
		`owner "a/b" cannot be a tag`: func(c *Config) { c.Owner = "a/b" },
		`cloud "other"`:               func(c *Config) { c.Cloud = "other" },
		"clouds file not found":       func(c *Config) { c.CloudsFile = file + "x" },
		"is not a pattern":            func(c *Config) { c.Types = []string{"["} },
		"not below 0":                 func(c *Config) { c.Prices.Table = map[string]float64{"x": -1} },
	} {
		cfg := whole
		edit(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func TestErrors(t *testing.T) {
	account := muster.Scope{Provider: "os"}
	const destroy, read, tags, lock = "DELETE /servers/{id}", "GET /servers/detail", "POST /servers/{id}/metadata", "POST /os-keypairs"
	body := func(kind, message string) string {
		return `{"` + kind + `": {"code": 1, "message": "` + message + `"}}`
	}
	limited := http.Header{"Retry-After": {"7"}}
	rows := []cloudtest.ErrorRow{
		{Name: "quota of cores", Status: 403, Body: body("forbidden", "Quota exceeded for cores, ram: Requested 4, but already used 20 of 20 cores"), Kind: muster.FaultQuota, Scope: account},
		{Name: "quota of ports", Status: 403, Body: body("forbidden", "Maximum number of ports exceeded"), Kind: muster.FaultQuota, Scope: account},
		{Name: "quota of volumes as 413", Status: 413, Body: body("overLimit", "VolumeLimitExceeded: Maximum number of volumes allowed exceeded for quota 'volumes'."), Kind: muster.FaultQuota, Scope: account},
		{Name: "quota of the network as 409", Status: 409, Body: body("NeutronError", "Quota exceeded for resources: ['port']."), Kind: muster.FaultQuota, Scope: account},
		{Name: "zero disk", Status: 403, Body: body("forbidden", "Only volume-backed servers are allowed for flavors with zero disk."), Kind: muster.FaultInvalid, Field: "types"},
		{Name: "policy", Status: 403, Body: body("forbidden", "Policy doesn't allow os_compute_api:servers:create to be performed."), Kind: muster.FaultAuth},
		{Name: "too many calls", Status: 429, Header: limited, Body: body("overLimit", "This request was rate-limited."), Kind: muster.FaultRateLimited, Scope: account, After: 7 * time.Second},
		{Name: "too many calls as 413", Status: 413, Body: body("overLimit", "This request was rate-limited."), Kind: muster.FaultRateLimited, Scope: account, After: pause},
		{Name: "429 of a proxy", Status: 429, Header: limited, Kind: muster.FaultRateLimited, Scope: account, After: 7 * time.Second},
		{Name: "image", Status: 400, Body: body("badRequest", "Image x could not be found."), Kind: muster.FaultInvalid, Field: "image"},
		{Name: "flavor", Status: 404, Body: body("itemNotFound", "Flavor x could not be found."), Kind: muster.FaultInvalid, Field: "types"},
		{Name: "security group", Status: 400, Body: body("badRequest", "Unable to find security_group with name or id 'x'"), Kind: muster.FaultInvalid, Field: "security_groups"},
		{Name: "network", Status: 400, Body: body("badRequest", "Network x could not be found."), Kind: muster.FaultInvalid, Field: "network"},
		{Name: "user data", Status: 400, Body: body("badRequest", "Invalid input for field/attribute user_data."), Kind: muster.FaultInvalid, Field: "user_data_file"},
		{Name: "zone", Status: 400, Body: body("badRequest", "The requested availability zone is not available"), Kind: muster.FaultInvalid},
		{Name: "version", Status: 406, Body: body("computeFault", "Version 2.69 is not supported by the API."), Kind: muster.FaultInvalid},
		{Name: "conflict", Status: 409, Body: body("conflictingRequest", "busy"), Kind: muster.FaultTransient},
		{Name: "500 on create", Status: 500, Body: body("computeFault", "Unexpected API Error."), Kind: muster.FaultAmbiguous},
		{Name: "HTML of a proxy", Status: 503, Body: "<html>", Kind: muster.FaultAmbiguous},
		{Name: "404 of a proxy", Status: 404, Body: "<html>", Kind: muster.FaultAmbiguous},
		{Name: "403 of a proxy", Status: 403, Body: "<html>", Kind: muster.FaultAmbiguous},
		{Name: "truncated success", Status: 202, Body: `{"server":{"id":`, Kind: muster.FaultAmbiguous},
		{Name: "success without a server", Status: 202, Body: `{"server":{}}`, Kind: muster.FaultAmbiguous},
		{Name: "lock refused", Call: lock, Status: 403, Body: body("forbidden", "Policy doesn't allow os_compute_api:os-keypairs:create to be performed."), Kind: muster.FaultAuth},
		{Name: "lock of a proxy", Call: lock, Status: 502, Body: "<html>", Kind: muster.FaultTransient},
		{Name: "HTML of a proxy on read", Call: read, Status: 503, Body: "<html>", Kind: muster.FaultTransient},
		{Name: "500 on read", Call: read, Status: 500, Body: body("computeFault", "x"), Kind: muster.FaultTransient},
		{Name: "truncated list", Call: read, Status: 200, Body: `{"servers":[`, Kind: muster.FaultTransient},
		{Name: "not found on destroy", Call: destroy, Status: 404, Body: body("itemNotFound", "gone"), Succeeds: true},
		{Name: "500 on destroy", Call: destroy, Status: 500, Body: body("computeFault", "x"), Kind: muster.FaultTransient},
		{Name: "policy on destroy", Call: destroy, Status: 403, Body: body("forbidden", "Policy doesn't allow it."), Kind: muster.FaultAuth},
		{Name: "busy on tags", Call: tags, Status: 409, Body: body("conflictingRequest", "Cannot 'update metadata' instance"), Kind: muster.FaultTransient},
	}
	cloudtest.Errors(t, rows, func(t *testing.T, row cloudtest.ErrorRow) error {
		c := openstacktest.New(t, openstacktest.Options{})
		p := open(t, c, "o", nil)
		refuse := func(call string) { c.Refuse(call, row.Status, row.Header, row.Body) }
		switch row.Call {
		case destroy, tags:
			in := made(t, p, "t")
			refuse(row.Call)
			if row.Call == destroy {
				return p.Destroy(t.Context(), []muster.InstanceID{in.ID})[0]
			}
			now := in.Tags
			now.Node = "other"
			return p.SetTags(t.Context(), in.ID, now)
		case read:
			refuse(read)
			_, err := p.List(t.Context(), "")
			return err
		case lock:
			refuse(lock)
			return make1(t, p, "t").Err
		}
		refuse(openstacktest.CreateServer)
		return make1(t, p, "t").Err
	})
}

// TestFaultsOfAllCalls plays faults on every call, and checks that no token ever gets two servers and
// that all of them get one.
func TestFaultsOfAllCalls(t *testing.T) {
	c := openstacktest.New(t, openstacktest.Options{Build: time.Millisecond})
	p := open(t, c, "o", nil)
	list(t, p)
	if err := c.Play("lost 10%\nfault 10%\nlimited 5%\nexpire 5%\nquota 5%"); err != nil {
		t.Fatal(err)
	}
	var tokens []string
	for i := range 20 {
		tokens = append(tokens, "t"+strconv.Itoa(i))
	}
	for _, token := range tokens {
		for tries := 0; ; tries++ {
			got := make1(t, p, token)
			if got.Err == nil {
				break
			}
			if tries > 200 {
				t.Fatal(got.Err)
			}
			// What the operator would do, here at once: the lock of a create that was cut is old.
			c.AddPair(driver.InstanceName("o", muster.Token(token)), lockLife+time.Second)
		}
	}
	if idle := c.Idle(); len(idle) != 0 {
		t.Errorf("the script did nothing: %v", idle)
	}
	seen := map[string]bool{}
	for _, m := range c.Ever() {
		if seen[m.Token] {
			t.Errorf("token %s has two servers", m.Token)
		}
		seen[m.Token] = true
	}
	if len(seen) != len(tokens) {
		t.Errorf("%d servers of %d tokens", len(seen), len(tokens))
	}
}
