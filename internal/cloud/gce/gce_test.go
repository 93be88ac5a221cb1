package gce

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/oauth2"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/cloudtest"
	"github.com/musterhq/muster/internal/cloud/driver"
	"github.com/musterhq/muster/internal/cloud/gce/gcetest"
)

// project is a stand-in of one project, in which several owners have instances.
type project struct{ *gcetest.Cloud }

func (c project) Open(t *testing.T, owner string) cloud.Provider { return open(t, c.Cloud, owner, nil) }

func open(t *testing.T, c *gcetest.Cloud, owner string, edit func(*Config)) *Provider {
	t.Helper()
	cfg := Config{Name: "g", Owner: owner, Project: gcetest.Project, Zones: []string{"europe-west1-b", "europe-west1-c"},
		Prices: driver.Prices{Table: map[string]float64{"n2-standard-2": 0.1, "n2/cpu": 0.03, "n2/gib": 0.004, "n2-standard-2/spot": 0.02}},
		Access: cloud.Access{KeyFile: "/key"}, Endpoint: c.URL, Poll: time.Millisecond,
		Tokens: oauth2.StaticTokenSource(&oauth2.Token{AccessToken: gcetest.Token})}
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
	cloudtest.Run(t, 30*time.Second, func(t *testing.T) cloudtest.Cloud {
		return project{gcetest.New(t, gcetest.Options{})}
	})
}

// The suite passes also where everything takes its time.
func TestConformanceOfASlowCloud(t *testing.T) {
	cloudtest.Run(t, 30*time.Second, func(t *testing.T) cloudtest.Cloud {
		return project{gcetest.New(t, gcetest.Options{Script: "operation: takes 20ms\nlist: page 1\n"})}
	})
}

func intent(token string) cloud.Intent {
	return cloud.Intent{Token: muster.Token(token), Node: "n1", Pool: "main", Offering: "n2-standard-2", Zone: "europe-west1-b", Market: muster.OnDemand,
		Labels: map[string]string{"team": "a", "Not a label": "x"}, Boot: cloud.Boot{UserData: muster.NewSecret("#cloud-config\n")}}
}

func make1(t *testing.T, p *Provider, in cloud.Intent) cloud.Created {
	t.Helper()
	return p.Create(t.Context(), []cloud.Intent{in})[0]
}

func TestAnInstanceHasAllFromItsCreate(t *testing.T) {
	c := gcetest.New(t, gcetest.Options{})
	p := open(t, c, "o", func(c *Config) { c.PublicIP, c.MaxLife, c.Disk = true, 24*time.Hour, 20*muster.GiB })
	in := intent("t")
	in.Market = muster.Spot
	got := make1(t, p, in)
	if got.Err != nil || got.Instance.Market != muster.Spot || !strings.HasPrefix(string(got.Instance.ID), "europe-west1-b/m-") {
		t.Fatalf("%+v", got)
	}
	v := c.Instance(string(got.Instance.ID))
	labels, s := v["labels"].(map[string]any), v["scheduling"].(map[string]any)
	if len(labels) != 6 || labels["team"] != "a" || labels["muster-owner"] != "o" {
		t.Errorf("%v", labels)
	}
	if s["instanceTerminationAction"] != "DELETE" || s["provisioningModel"] != "SPOT" || fmt.Sprint(s["maxRunDuration"]) != "map[seconds:86400]" {
		t.Errorf("%v", s)
	}
	if text := fmt.Sprint(v["metadata"]); !strings.Contains(text, "#cloud-config") || !strings.Contains(text, "block-project-ssh-keys") {
		t.Errorf("%s", text)
	}
	if v["serviceAccounts"] != nil {
		t.Error("nodes get credentials of the cloud")
	}
	calls := c.Calls("instances.get")
	a, err := p.Access(t.Context(), got.Instance.ID)
	if err != nil || a.User != "ubuntu" || a.KeyFile != "/key" || a.Shutdown != "poweroff" || !strings.HasPrefix(a.Address, "198.51.") {
		t.Errorf("%+v, %v", a, err)
	}
	if c.Calls("instances.get") != calls {
		t.Error("an address that the create has shown is asked for again")
	}
	if errs := p.Destroy(t.Context(), []muster.InstanceID{got.Instance.ID}); errs[0] != nil {
		t.Error(errs[0])
	}
	if instances, disks, _, made := c.Books(); len(instances) != 0 || len(disks) != 0 || made != 1 {
		t.Errorf("%v, %v, %d", instances, disks, made)
	}
}

// Whatever becomes of the answer, a token is one instance.
func TestALostAnswerMakesOneInstance(t *testing.T) {
	for fault, kind := range map[string]muster.FaultKind{
		"lost before": muster.FaultAmbiguous, "lost after": muster.FaultAmbiguous, "truncated": muster.FaultAmbiguous, "proxy": muster.FaultAmbiguous,
	} {
		c := gcetest.New(t, gcetest.Options{Script: "call: " + fault + " once method=instances.insert"})
		p := open(t, c, "o", nil)
		if got := make1(t, p, intent("t")); !muster.IsKind(got.Err, kind) {
			t.Errorf("%s: %+v", fault, got)
		}
		if got := make1(t, p, intent("t")); got.Err != nil || got.Instance.Tags.Token != "t" {
			t.Errorf("%s: %+v", fault, got)
		}
		if instances, _, _, made := c.Books(); len(instances) != 1 || made != 1 {
			t.Errorf("%s: %v, %d", fault, instances, made)
		}
		if idle := c.Idle(); len(idle) > 0 {
			t.Errorf("never struck: %v", idle)
		}
	}
}

func TestAnOperationThatIsNotSeenToEndIsLookedAtByLists(t *testing.T) {
	// The clock stands while the instance is made, however long that takes here.
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	c := gcetest.New(t, gcetest.Options{Now: func() time.Time { return now },
		Script: "operation: takes 50ms once\noperation: fails ZONE_RESOURCE_POOL_EXHAUSTED once\ncall: proxy once method=zoneOperations.wait"})
	p := open(t, c, "o", nil)
	got := make1(t, p, intent("t"))
	if got.Err != nil || got.Instance.Failed != nil {
		t.Fatalf("%+v", got)
	}
	now = now.Add(time.Second)
	if _, err := p.List(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	i, _, _ := p.knows(got.Instance.ID)
	if want := (muster.Scope{Provider: "g", Offering: "n2-standard-2", Zone: "europe-west1-b", Market: muster.OnDemand}); i.Failed == nil || i.Failed.Kind != muster.FaultCapacity || i.Failed.Scope != want {
		t.Errorf("%+v", i.Failed)
	}
}

func TestListsSayWhatTheyHaveNotSeen(t *testing.T) {
	c := gcetest.New(t, gcetest.Options{Script: "list: page 1\nlist: unreachable zone=europe-west1-c once"})
	p := open(t, c, "o", nil)
	for _, token := range []string{"a", "b"} {
		make1(t, p, intent(token))
	}
	// Only the first page lacks a zone, but then the whole list does.
	for _, complete := range []bool{false, true} {
		seen, cursor, last := 0, "", cloud.Listing{}
		for pages := 0; pages == 0 || cursor != ""; pages++ {
			var err error
			if last, err = p.List(t.Context(), cursor); err != nil {
				t.Fatal(err)
			}
			seen += len(last.Instances)
			cursor = last.Next
		}
		if seen != 2 || last.Complete != complete {
			t.Errorf("%d, complete %t", seen, last.Complete)
		}
	}
	if _, err := p.List(t.Context(), "cnonsense"); !muster.IsKind(err, muster.FaultTransient) {
		t.Errorf("%v", err)
	}
}

// What a list that lags does not show is known all the same, and is not made twice.
func TestAListMayLagBehindACreate(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	c := gcetest.New(t, gcetest.Options{Script: "list: late 20s", Now: func() time.Time { return now }})
	p := open(t, c, "o", nil)
	got := make1(t, p, intent("t"))
	for _, want := range []int{0, 1} {
		l, err := p.List(t.Context(), "")
		if err != nil || len(l.Instances) != want {
			t.Errorf("%+v, %v", l, err)
		}
		if again := make1(t, p, intent("t")); again.Err != nil || again.Instance.ID != got.Instance.ID {
			t.Errorf("%+v", again)
		}
		now = now.Add(p.Consistency().ListLag)
	}
}

// An instance that moves between pages while a list is read is shown twice by the cloud.
func TestAnInstanceMayMoveBetweenPages(t *testing.T) {
	c := gcetest.New(t, gcetest.Options{Script: "list: page 2\nlist: repeat once"})
	p := open(t, c, "o", nil)
	for _, token := range []string{"a", "b", "c"} {
		make1(t, p, intent(token))
	}
	seen := map[muster.InstanceID]bool{}
	for cursor, more := "", true; more; more = cursor != "" {
		l, err := p.List(t.Context(), cursor)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range l.Instances {
			seen[i.ID] = true
		}
		cursor = l.Next
	}
	if len(seen) != 3 || len(c.Idle()) > 0 {
		t.Errorf("%v, %v", seen, c.Idle())
	}
}

func TestAnInstanceThatLostItsLabelsIsLeftAlone(t *testing.T) {
	c := gcetest.New(t, gcetest.Options{})
	got := make1(t, open(t, c, "o", nil), intent("t"))
	c.Relabel(string(got.Instance.ID), map[string]any{})
	p := open(t, c, "o", nil)
	if again := make1(t, p, intent("t")); !muster.IsKind(again.Err, muster.FaultInvalid) || !strings.Contains(again.Err.Error(), "not the labels") {
		t.Errorf("%+v", again)
	}
	if errs := p.Destroy(t.Context(), []muster.InstanceID{got.Instance.ID}); !muster.IsKind(errs[0], muster.FaultNotFound) {
		t.Errorf("%v", errs)
	}
}

func TestLeftoversAreOursAndUnused(t *testing.T) {
	c := gcetest.New(t, gcetest.Options{})
	p := open(t, c, "o", nil)
	make1(t, p, intent("t"))
	mine := map[string]any{"muster-owner": "o"}
	c.AddDisk("europe-west1-b", "d", mine)
	c.AddAddress("europe-west1", "a", mine)
	c.AddDisk("europe-west1-b", "other", map[string]any{"muster-owner": "other"})
	left, err := p.Leftovers(t.Context())
	if err != nil || len(left) != 2 || left[0].ID != "europe-west1-b/d" || left[1].ID != "europe-west1/a" || left[0].Created == 0 {
		t.Fatalf("%+v, %v", left, err)
	}
	bad := []cloud.Leftover{{Kind: diskKind, ID: "europe-west1-b/other"}, {Kind: "volume", ID: "a/b"}, {Kind: diskKind, ID: "../x"}}
	if errs := p.Remove(t.Context(), bad); !muster.IsKind(errs[0], muster.FaultNotFound) || !muster.IsKind(errs[1], muster.FaultInvalid) || !muster.IsKind(errs[2], muster.FaultInvalid) {
		t.Errorf("%v", errs)
	}
	for range 2 {
		for _, err := range p.Remove(t.Context(), left) {
			if err != nil {
				t.Error(err)
			}
		}
	}
	if _, disks, ips, _ := c.Books(); len(disks) != 2 || len(ips) != 0 {
		t.Errorf("%v, %v", disks, ips)
	}
}

func TestOffersAndResolve(t *testing.T) {
	c := gcetest.New(t, gcetest.Options{})
	p := open(t, c, "o", func(c *Config) { c.Markets = []muster.Market{muster.OnDemand, muster.Spot} })
	offers, err := p.Offers(t.Context())
	if err != nil || len(offers) != 6 {
		t.Fatalf("%+v, %v", offers, err)
	}
	want := muster.Offering{Provider: "g", Name: "n2-standard-4", Zone: "europe-west1-b", Market: muster.OnDemand, Price: 184000,
		Capacity: muster.Resources{CPU: 4000, Memory: driver.Share(16*muster.GiB, driver.MemoryShare), Disk: 45 * muster.GiB}, Available: true,
		Family: "europe-west1/N2_CPUS", Weight: 4}
	at := slices.IndexFunc(offers, func(o muster.Offering) bool { return o.Name == want.Name })
	if at < 0 {
		t.Fatalf("%+v", offers)
	}
	o := offers[at]
	o.Attributes = nil
	if fmt.Sprint(o) != fmt.Sprint(want) {
		t.Errorf("%+v", o)
	}
	if offers[1].Market != muster.Spot || offers[1].Price != 20000 || offers[1].Family != "europe-west1/PREEMPTIBLE_CPUS" {
		t.Errorf("%+v", offers[1])
	}
	quotas, err := p.Quotas(t.Context())
	if err != nil || len(quotas) != 2 || quotas[0] != (cloud.Quota{Family: "europe-west1/N2_CPUS", Limit: 24, Used: 4, Weighed: true}) {
		t.Errorf("%+v, %v", quotas, err)
	}
	problems := func(edit func(*Config)) (n int, text string) {
		all, err := open(t, c, "o", edit).Resolve(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range all {
			if r.Problem != "" {
				n++
				text += r.What + ": " + r.Problem + "\n"
			}
		}
		return n, text
	}
	for what, edit := range map[string]func(*Config){
		"zone": func(c *Config) { c.Zones = []string{"mars-north1-a"} }, "subnetwork": func(c *Config) { c.Subnetwork = "none" },
		"image": func(c *Config) { c.Image = "none" }, "offerings": func(c *Config) { c.Types = []string{"x9-*"} },
		"zone europe-west1-b: ": func(c *Config) { c.Project, c.Zones = "another", c.Zones[:1] },
	} {
		if n, text := problems(edit); n != 1 || !strings.Contains(text, what) {
			t.Errorf("%s: %d problems: %s", what, n, text)
		}
	}
	if n, text := problems(func(c *Config) { c.Image = "nodes-1" }); n != 0 {
		t.Errorf("%s", text)
	}
}

// With GPUs: types that have their own, and N1 with some attached. They are offered where types names
// them, with their model, number and memory, and count against the quota of GPUs.
func TestGPUs(t *testing.T) {
	c := gcetest.New(t, gcetest.Options{})
	p := open(t, c, "o", func(c *Config) {
		c.Zones = c.Zones[:1]
		c.Markets = []muster.Market{muster.OnDemand, muster.Spot}
		c.Types = driver.Globs{"a2-*", "g2-*", "ct5lp-*", "n1-*", "n1-standard-*+*nvidia-tesla-t4", "n1-standard-8+nvidia-tesla-v100"}
		c.Prices.Table = map[string]float64{"a2/cpu": 0.03, "a2/gib": 0.004, "nvidia-a100-80gb": 4, "a2-highgpu-1g": 3, "g2/cpu": 0.03, "g2/gib": 0.004, "ct5lp-hightpu-1t": 1,
			"n1/cpu": 0.03, "n1/gib": 0.004, "n1/cpu/spot": 0.01, "n1/gib/spot": 0.001, "nvidia-tesla-t4": 0.35, "nvidia-tesla-t4/spot": 0.1, "nvidia-tesla-v100": 2.5}
	})
	offers, err := p.Offers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for i := range offers {
		o := &offers[i]
		got = append(got, fmt.Sprintf("%s %s %g %v %s %s %d", o.Name, o.Market, float64(o.Price)/1e6, o.Devices, o.Attributes[driver.AttributeGPUMemory], strings.TrimPrefix(o.Family, "europe-west1/"), o.Weight))
	}
	slices.Sort(got)
	// g2 has no price of its GPU, ct5lp is no GPU, a virtual workstation neither; 64 cores take four T4,
	// and a V100 no more than 12.
	want := []string{
		"a2-highgpu-1g on-demand 3 [1 gpu A100] 40 NVIDIA_A100_GPUS 1",
		"a2-ultragpu-2g on-demand 10.08 [2 gpu A100-80GB] 80 NVIDIA_A100_80GB_GPUS 2",
		"n1-standard-64 on-demand 2.88 []  CPUS 64",
		"n1-standard-64 spot 0.88 []  PREEMPTIBLE_CPUS 64",
		"n1-standard-64+4xnvidia-tesla-t4 on-demand 4.28 [4 gpu T4] 16 NVIDIA_T4_GPUS 4",
		"n1-standard-64+4xnvidia-tesla-t4 spot 1.28 [4 gpu T4] 16 PREEMPTIBLE_NVIDIA_T4_GPUS 4",
		"n1-standard-8 on-demand 0.36 []  CPUS 8",
		"n1-standard-8 spot 0.11 []  PREEMPTIBLE_CPUS 8",
		"n1-standard-8+2xnvidia-tesla-t4 on-demand 1.06 [2 gpu T4] 16 NVIDIA_T4_GPUS 2",
		"n1-standard-8+2xnvidia-tesla-t4 spot 0.31 [2 gpu T4] 16 PREEMPTIBLE_NVIDIA_T4_GPUS 2",
		"n1-standard-8+4xnvidia-tesla-t4 on-demand 1.76 [4 gpu T4] 16 NVIDIA_T4_GPUS 4",
		"n1-standard-8+4xnvidia-tesla-t4 spot 0.51 [4 gpu T4] 16 PREEMPTIBLE_NVIDIA_T4_GPUS 4",
		"n1-standard-8+nvidia-tesla-t4 on-demand 0.71 [1 gpu T4] 16 NVIDIA_T4_GPUS 1",
		"n1-standard-8+nvidia-tesla-t4 spot 0.21 [1 gpu T4] 16 PREEMPTIBLE_NVIDIA_T4_GPUS 1",
		"n1-standard-8+nvidia-tesla-v100 on-demand 2.86 [1 gpu V100] 16 NVIDIA_V100_GPUS 1",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	quotas, err := p.Quotas(t.Context())
	if err != nil || !slices.Contains(quotas, cloud.Quota{Family: "europe-west1/NVIDIA_T4_GPUS", Limit: 2, Used: 1, Weighed: true}) || len(quotas) != 2 {
		t.Errorf("%+v, %v", quotas, err)
	}
	for _, name := range []muster.OfferingName{"n1-standard-8+2xnvidia-tesla-t4", "a2-highgpu-1g"} {
		in := intent(string(name[:2]))
		in.Offering = name
		made := make1(t, p, in)
		if made.Err != nil || made.Instance.Offering != name {
			t.Errorf("%s: %+v", name, made)
		}
	}
	// A server that was started again sees in lists what they are.
	l, err := open(t, c, "o", nil).List(t.Context(), "")
	if err != nil || len(l.Instances) != 2 {
		t.Fatalf("%+v, %v", l, err)
	}
	for i, name := range []muster.OfferingName{"a2-highgpu-1g", "n1-standard-8+2xnvidia-tesla-t4"} {
		if !slices.ContainsFunc(l.Instances, func(in cloud.Instance) bool { return in.Offering == name }) {
			t.Errorf("%d: %s is not in %+v", i, name, l.Instances)
		}
	}
	// Without a pattern nothing with GPUs is offered.
	all, err := open(t, c, "o", func(c *Config) { c.Prices.Table = p.cfg.Prices.Table }).Offers(t.Context())
	if err != nil || len(all) == 0 || slices.ContainsFunc(all, func(o muster.Offering) bool { return len(o.Devices) > 0 }) {
		t.Errorf("%+v, %v", all, err)
	}
}

// A quota of GPUs that is used up holds back what has such GPUs, and nothing else.
func TestAQuotaOfGPUs(t *testing.T) {
	c := gcetest.New(t, gcetest.Options{Script: "operation: fails QUOTA_EXCEEDED once metric=compute.googleapis.com/nvidia_t4_gpus"})
	p := open(t, c, "o", func(c *Config) {
		c.Types, c.Prices.Table = driver.Globs{"n1-standard-8+nvidia-tesla-t4"}, map[string]float64{"n1-standard-8+nvidia-tesla-t4": 1}
	})
	in := intent("t")
	in.Offering = "n1-standard-8+nvidia-tesla-t4"
	var f *muster.Fault
	if got := make1(t, p, in); !errors.As(got.Err, &f) || f.Kind != muster.FaultQuota || f.Scope.Family != "europe-west1/NVIDIA_T4_GPUS" {
		t.Errorf("%+v", got)
	}
	in.Token = "another" // the cloud answers the same request the same
	if got := make1(t, p, in); got.Err != nil {
		t.Errorf("%+v", got)
	}
}

// Types of ARM get the image of their architecture.
func TestTheImageIsThatOfTheArchitecture(t *testing.T) {
	c := gcetest.New(t, gcetest.Options{})
	edit := func(c *Config) {
		c.Types, c.Prices.Table = driver.Globs{"t2a-*", "c4a-*", "n2-standard-2"}, map[string]float64{"t2a-standard-2": 0.05, "c4a-standard-4": 0.1, "n2-standard-2": 0.1}
	}
	p := open(t, c, "o", edit)
	offers, err := p.Offers(t.Context())
	if err != nil || len(offers) != 6 {
		t.Fatalf("%+v, %v", offers, err)
	}
	for i := range offers {
		o := &offers[i]
		if arm := o.Name != "n2-standard-2"; arm != (o.Attributes["arch"] == "arm64") {
			t.Errorf("%s is for %s", o.Name, o.Attributes["arch"])
		}
		in := intent(fmt.Sprint("t", i))
		in.Offering, in.Zone = o.Name, o.Zone
		if got := make1(t, p, in); got.Err != nil {
			t.Errorf("%s: %v", o.Name, got.Err)
		}
	}
	wrong := open(t, c, "o", func(c *Config) { edit(c); c.Image = "nodes-1" })
	all, err := wrong.Resolve(t.Context())
	if err != nil || !slices.ContainsFunc(all, func(r cloud.Resolved) bool {
		return r.What == "image for arm64" && strings.Contains(r.Problem, "it is for X86_64")
	}) {
		t.Errorf("%+v, %v", all, err)
	}
	in := intent("wrong")
	in.Offering = "t2a-standard-2"
	if got := make1(t, wrong, in); !muster.IsKind(got.Err, muster.FaultInvalid) || !strings.Contains(got.Err.Error(), "architecture") {
		t.Errorf("%+v", got)
	}
}

func TestConfigIsRefusedInSentences(t *testing.T) {
	good := func() Config {
		return Config{Name: "g", Owner: "o", Project: "p", Zones: []string{"europe-west1-b"}, Prices: driver.Prices{Table: map[string]float64{"a": 1}}}
	}
	for want, edit := range map[string]func(*Config){
		"name and owner are missing":   func(c *Config) { c.Owner = "" },
		`owner "A" cannot be a label`:  func(c *Config) { c.Owner = "A" },
		"project is missing":           func(c *Config) { c.Project = "" },
		"zones are missing":            func(c *Config) { c.Zones = nil },
		"is not the name of a zone":    func(c *Config) { c.Zones = []string{"europe-west1"} },
		"prices are missing":           func(c *Config) { c.Prices.Table = nil },
		"has no cloud-init":            func(c *Config) { c.Image = "debian-12" },
		"max_life: 1s is not between ": func(c *Config) { c.MaxLife = time.Second },
	} {
		c := good()
		edit(&c)
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if _, err := New(good()); err != nil {
		t.Error(err)
	}
}

func TestTheLimitOnCallsIsReported(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 40, 0, time.UTC)
	c := gcetest.New(t, gcetest.Options{Script: "account: rates 2", Now: func() time.Time { return now }})
	p := open(t, c, "o", func(c *Config) { c.Now = func() time.Time { return now } })
	var err error
	for range 3 {
		_, err = p.List(t.Context(), "")
	}
	f, ok := err.(*muster.Fault)
	if !ok || f.Kind != muster.FaultRateLimited || f.After != 20*time.Second || f.Scope != (muster.Scope{Provider: "g"}) {
		t.Errorf("%+v", err)
	}
}

type noToken struct{ err error }

func (n noToken) Token() (*oauth2.Token, error) { return nil, n.err }

func TestWithoutATokenNothingIsSent(t *testing.T) {
	c := gcetest.New(t, gcetest.Options{})
	for kind, err := range map[muster.FaultKind]error{
		muster.FaultTransient: context.DeadlineExceeded,
		muster.FaultAuth:      &oauth2.RetrieveError{Response: &http.Response{StatusCode: http.StatusBadRequest}, Body: []byte("secret"), ErrorCode: "invalid_grant"},
	} {
		_, got := open(t, c, "o", func(c *Config) { c.Tokens = noToken{err} }).List(t.Context(), "")
		if !muster.IsKind(got, kind) || strings.Contains(got.Error(), "secret") {
			t.Errorf("%v", got)
		}
	}
	if c.Calls("instances.aggregatedList") != 0 {
		t.Error("sent")
	}
}
