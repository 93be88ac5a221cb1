package ec2

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/boot"
	"github.com/musterhq/muster/internal/cloud/driver"
)

func TestWhatIsMissingIsNamed(t *testing.T) {
	good := Config{Name: "aws", Owner: "c1", Region: "eu-central-1", Subnets: []string{"subnet-1"}, SecurityGroups: []string{"sg-1"}, Credentials: keys{}}
	if _, err := New(good); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		edit func(*Config)
		want string
	}{
		{func(c *Config) { c.Region = "" }, "region is missing"},
		{func(c *Config) { c.Region = "https://ec2" }, "not the name of a region"},
		{func(c *Config) { c.Subnets = nil }, "aws ec2 describe-subnets"},
		{func(c *Config) { c.Subnets = []string{"vpc-1"} }, `"vpc-1" is not the id of a subnet`},
		{func(c *Config) { c.SecurityGroups = nil }, "aws ec2 describe-security-groups"},
		{func(c *Config) { c.SecurityGroups = []string{"default"} }, `"default" is not the id`},
		{func(c *Config) { c.Image = "debian" }, "write debian-12"},
		{func(c *Config) { c.Image = "ami-1" }, "ssh.user is missing"},
		{func(c *Config) { c.Types = driver.Globs{"["} }, "not a pattern"},
		{func(c *Config) { c.Markets = []muster.Market{"cheap"} }, `"cheap" is neither`},
		{func(c *Config) { c.Disk = 10 * muster.MiB }, "counts in GiB"},
		{func(c *Config) { c.Endpoint = "localhost" }, "not an address"},
		{func(c *Config) { c.Prices.Table = map[string]float64{"a": -1} }, "not below 0"},
		{func(c *Config) { c.Credentials, c.Profile = nil, "no-such-profile" }, "no-such-profile"},
	} {
		cfg := good
		c.edit(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "provider aws: ") {
			t.Errorf("%v; want %q", err, c.want)
		}
	}
}

func TestEndpoints(t *testing.T) {
	for region, want := range map[string][3]string{
		"eu-central-1":  {"https://ec2.eu-central-1.amazonaws.com/", "https://ssm.eu-central-1.amazonaws.com/", "https://api.pricing.eu-central-1.amazonaws.com/"},
		"us-west-2":     {"https://ec2.us-west-2.amazonaws.com/", "https://ssm.us-west-2.amazonaws.com/", "https://api.pricing.us-east-1.amazonaws.com/"},
		"cn-north-1":    {"https://ec2.cn-north-1.amazonaws.com.cn/", "https://ssm.cn-north-1.amazonaws.com.cn/", "https://api.pricing.cn-northwest-1.amazonaws.com.cn/"},
		"us-gov-west-1": {"https://ec2.us-gov-west-1.amazonaws.com/", "https://ssm.us-gov-west-1.amazonaws.com/", ""},
	} {
		c := client{region: region}
		c.endpoints("")
		if got := [3]string{c.ec2.url, c.ssm.url, c.pricing.url}; got != want {
			t.Errorf("%s: %v", region, got)
		}
	}
	c := client{region: "eu-central-1"}
	if c.endpoints("https://vpce-1.ec2.eu-central-1.vpce.amazonaws.com"); c.ssm.url != "https://ssm.eu-central-1.amazonaws.com/" {
		t.Errorf("a private endpoint of EC2 serves nothing else: %s", c.ssm.url)
	}
}

// flat is a form as lines, for a golden file.
func flat(form url.Values) string {
	var b strings.Builder
	for _, k := range slices.Sorted(func(yield func(string) bool) {
		for k := range form {
			if !yield(k) {
				return
			}
		}
	}) {
		fmt.Fprintf(&b, "%s=%s\n", k, form.Get(k))
	}
	return b.String()
}

// The calls of a single launch and of one of three are as they were: what is in them decides whether
// EC2 takes a repeated one for the same.
func TestLaunchForms(t *testing.T) {
	c := newCanned(t)
	c.by["RunInstances"] = func(f url.Values) reply { return launched(1, int(f.Get("MaxCount")[0]-'0')) }
	p := c.open(func(c *Config) {
		c.Markets = []muster.Market{muster.OnDemand, muster.Spot}
		c.InstanceProfile = "nodes"
	})
	single := intent("t1")
	single.Labels = map[string]string{"team": "a", "aws:reserved": "b"}
	single.Boot.UserData = muster.NewSecret("#cloud-config\n")
	if got := p.Create(t.Context(), []cloud.Intent{single}); got[0].Err != nil {
		t.Fatal(got[0].Err)
	}
	var three []cloud.Intent
	for i := range 3 {
		in := intent(fmt.Sprint("s", i))
		in.Market = muster.Spot
		in.Boot.UserData = muster.NewSecret(fmt.Sprintf("#cloud-config\nssh_keys:\n  key: %d\nruncmd: []\n", i))
		three = append(three, in)
	}
	for i, got := range p.Create(t.Context(), three) {
		if got.Err != nil || got.Instance.Tags.Token != three[i].Token || got.Instance.Tags.Node != three[i].Node || got.Instance.ID != muster.InstanceID(id(1+i)) || got.Instance.Market != muster.Spot {
			t.Errorf("%+v", got)
		}
	}
	var text string
	for _, f := range c.of("RunInstances") {
		data, err := base64.StdEncoding.DecodeString(f.Get("UserData"))
		if err != nil {
			t.Fatal(err)
		}
		f.Set("UserData", fmt.Sprintf("%q", data))
		text += flat(f) + "\n"
	}
	const golden = "testdata/launch.golden"
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(golden, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil || text != string(want) {
		t.Errorf("%v; UPDATE=1 writes it:\n%s", err, text)
	}
}

// Documents of package boot become one, with and without an operator's part.
func TestUserDataOfABatch(t *testing.T) {
	for name, own := range map[string]string{"plain": "", "script": "#!/bin/sh\necho hello\n"} {
		var documents []string
		for i := range maxBatch {
			b, err := boot.For(boot.Config{Secret: muster.NewSecret(strings.Repeat("s", boot.MinSecret)), UserData: own,
				AuthorizedKey: "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIGPP/hIIzSXBgGFi5iEMdlbuS3PZt4RTA1TtrQm5HWx muster"}, muster.Token(fmt.Sprint("token-", i)))
			if err != nil {
				t.Fatal(err)
			}
			documents = append(documents, b.UserData.Reveal())
		}
		shared, ok := sharedUserData(documents)
		if !ok || len(shared) > maxUserData {
			t.Fatalf("%s: %t, %d bytes", name, ok, len(shared))
		}
		configs := []string{shared}
		wants := slices.Clone(documents)
		if own != "" {
			parts, err := partsOf(shared)
			if err != nil || len(parts) != 2 || parts[1].text != own || !strings.HasPrefix(parts[0].kind, "text/jinja2") || parts[0].merge == "" {
				t.Fatalf("%s: %v %+v", name, err, parts)
			}
			configs[0] = parts[0].text
			for i := range wants {
				parts, err := partsOf(documents[i])
				if err != nil {
					t.Fatal(err)
				}
				wants[i] = parts[0].text
			}
		}
		for i, want := range wants {
			if got := rendered(configs[0], i); got != want {
				t.Errorf("%s: instance %d reads\n%s\nnot\n%s", name, i, got, want)
			}
		}
	}
	same := "anything at all"
	if got, ok := sharedUserData([]string{same, same}); !ok || got != same {
		t.Errorf("the same for all: %q", got)
	}
	for _, bad := range [][]string{{"#!/bin/sh\n1", "#!/bin/sh\n2"}, {"#cloud-config\na: {{x}}\n", "#cloud-config\nb: {{x}}\n"}, {"#cloud-config\n", "#!/bin/sh\n"}, {"#cloud-config\na", "Content-Type: multipart/mixed; boundary=x\n\n"},
		{"Content-Type: multipart/mixed; boundary=x\n\n1", "Content-Type: multipart/mixed; boundary=x\n\n2"}} {
		if got, ok := sharedUserData(bad); ok {
			t.Errorf("%q becomes %q", bad, got)
		}
	}
	for _, odd := range [][]string{{"#cloud-config\na: 1\n", "#cloud-config\na: 1\nb: 2\n"}, {"#cloud-config\na: 1\nb: 2\n", "#cloud-config\nb: 2\n"}, {"#cloud-config\n", "#cloud-config\na: 1\n"}} {
		if shared, ok := sharedUserData(odd); ok {
			for i := range odd {
				if got := rendered(shared, i); got != odd[i] {
					t.Errorf("%q for %d is %q", odd, i, got)
				}
			}
		}
	}
}

// rendered is what the template gives for a launch index, by a reader of its own.
func rendered(document string, index int) string {
	document = strings.TrimPrefix(document, jinjaHeader)
	var b strings.Builder
	on := true
	for line := range strings.Lines(document) {
		switch {
		case strings.HasPrefix(line, "{% endif"):
			on = true
		case strings.HasPrefix(line, "{%"):
			on = strings.HasSuffix(strings.TrimSpace(line), fmt.Sprintf("== %d %%}", index))
		case on:
			b.WriteString(line)
		}
	}
	return b.String()
}

func TestPartialSuccessIsCapacityForTheRest(t *testing.T) {
	c := newCanned(t)
	p := c.open(nil)
	c.by["RunInstances"] = func(url.Values) reply { return launched(1, 3) }
	var intents []cloud.Intent
	for i := range 5 {
		intents = append(intents, intent(fmt.Sprint("t", i)))
	}
	for i, got := range p.Create(t.Context(), intents) {
		if i < 3 && (got.Err != nil || got.Instance.ID != muster.InstanceID(id(1+i))) || i >= 3 && !muster.IsKind(got.Err, muster.FaultCapacity) {
			t.Errorf("%d: %+v", i, got)
		}
	}
	if n := len(c.of("RunInstances")); n != 1 {
		t.Errorf("%d launches", n)
	}
}

func TestIntentsAreGroupedByKind(t *testing.T) {
	c := newCanned(t)
	p := c.open(func(c *Config) { c.Markets = []muster.Market{muster.OnDemand, muster.Spot} })
	var mu sync.Mutex
	next := 1
	c.by["RunInstances"] = func(f url.Values) reply {
		mu.Lock()
		defer mu.Unlock()
		n := int(f.Get("MaxCount")[0] - '0')
		next += n
		return launched(next-n, n)
	}
	var intents []cloud.Intent
	for i := range 12 {
		in := intent(fmt.Sprint("t", i))
		switch {
		case i == 9:
			in.Market = muster.Spot
		case i == 10:
			in.Offering = "m7i.xlarge"
		case i == 11:
			in.Offering = "no-such-type"
		}
		intents = append(intents, in)
	}
	for i, got := range p.Create(t.Context(), intents) {
		if i == 11 {
			if !muster.IsKind(got.Err, muster.FaultInvalid) || !strings.Contains(got.Err.Error(), "no-such-type") {
				t.Errorf("%+v", got)
			}
			continue
		}
		if got.Err != nil || got.Instance.Tags.Token != intents[i].Token || got.Instance.Offering != intents[i].Offering {
			t.Errorf("%d: %+v", i, got)
		}
	}
	var sizes []string
	for _, f := range c.of("RunInstances") {
		sizes = append(sizes, f.Get("MaxCount"))
	}
	slices.Sort(sizes)
	if got := strings.Join(sizes, " "); got != "1 1 1 8" {
		t.Errorf("launches of %s", got)
	}
}

// More intents than one launch takes fill launches, also when two kinds of user data are mixed.
func TestLaunchesAreFilled(t *testing.T) {
	c := newCanned(t)
	p := c.open(nil)
	p.launch.Rate.PerSecond = 1000
	c.by["RunInstances"] = func(f url.Values) reply { return launched(1, int(f.Get("MaxCount")[0]-'0')) }
	var intents []cloud.Intent
	for i := range 40 {
		in := intent(fmt.Sprint("t", i))
		if i%2 == 1 {
			in.Boot.UserData = muster.NewSecret("#!/bin/sh\n")
		}
		intents = append(intents, in)
	}
	p.Create(t.Context(), intents)
	var sizes []string
	for _, f := range c.of("RunInstances") {
		sizes = append(sizes, f.Get("MaxCount"))
	}
	slices.Sort(sizes)
	if got := strings.Join(sizes, " "); got != "4 4 8 8 8 8" {
		t.Errorf("launches of %s", got)
	}
}

// A full subnet is followed by the next one of the zone; a lost answer is not.
func TestSubnetsOfAZone(t *testing.T) {
	c := newCanned(t)
	p := c.open(nil)
	// plays sets the answer of each subnet. used is where launches were tried since the last time.
	seen := 0
	used := func() string {
		var out []string
		for _, f := range c.of("RunInstances")[seen:] {
			out = append(out, f.Get("NetworkInterface.1.SubnetId"))
		}
		seen += len(out)
		return strings.Join(out, " ")
	}
	plays := func(first, second reply) {
		c.set("RunInstances", func(f url.Values) reply {
			return map[string]reply{"subnet-0a": first, "subnet-0a2": second}[f.Get("NetworkInterface.1.SubnetId")]
		})
	}
	full := refuse(400, "InsufficientFreeAddressesInSubnet", "None left.")
	plays(full, launched(1, 1))
	got := p.Create(t.Context(), []cloud.Intent{intent("t1")})[0]
	if places := used(); got.Err != nil || places != "subnet-0a subnet-0a2" {
		t.Fatalf("%+v by %s", got, places)
	}
	forms := c.of("RunInstances")
	if forms[0].Get("ClientToken") == forms[1].Get("ClientToken") {
		t.Error("the same client token in another subnet")
	}
	// The full one is tried last for a while.
	plays(full, full)
	got = p.Create(t.Context(), []cloud.Intent{intent("t2")})[0]
	if places := used(); places != "subnet-0a2 subnet-0a" || !muster.IsKind(got.Err, muster.FaultCapacity) || got.Err.(*muster.Fault).Scope != (muster.Scope{Provider: "aws", Zone: "eu-central-1a"}) {
		t.Errorf("%v by %s", got.Err, places)
	}
	for _, lost := range []reply{{status: 500}, {status: 200, body: launched(1, 1).body, cut: true}, refuse(503, "RequestLimitExceeded", "")} {
		fresh := newCanned(t)
		p := fresh.open(nil)
		p.patience = 0
		fresh.by["RunInstances"] = func(url.Values) reply { return lost }
		if got := p.Create(t.Context(), []cloud.Intent{intent("t3")})[0]; got.Err == nil || len(fresh.of("RunInstances")) != 1 {
			t.Errorf("%v after %d calls", got.Err, len(fresh.of("RunInstances")))
		}
	}
}

// A launch whose answer was lost is sent again as it was, whatever is asked for with it.
func TestALostLaunchIsRepeatedAsItWas(t *testing.T) {
	c := newCanned(t)
	p := c.open(nil)
	c.by["RunInstances"] = func(url.Values) reply { return reply{status: 200, body: launched(1, 2).body, cut: true} }
	for _, got := range p.Create(t.Context(), []cloud.Intent{intent("t1"), intent("t2")}) {
		if !muster.IsKind(got.Err, muster.FaultAmbiguous) {
			t.Fatalf("%+v", got)
		}
	}
	c.set("RunInstances", func(f url.Values) reply {
		if f.Get("MaxCount") == "2" {
			return launched(1, 2)
		}
		return launched(7, 1)
	})
	got := p.Create(t.Context(), []cloud.Intent{intent("t3"), intent("t2")})
	if got[0].Err != nil || got[0].Instance.ID != muster.InstanceID(id(7)) || got[1].Err != nil || got[1].Instance.ID != muster.InstanceID(id(2)) {
		t.Errorf("%+v", got)
	}
	forms := c.of("RunInstances")
	if len(forms) != 3 {
		t.Fatalf("%d launches", len(forms))
	}
	again := forms[1]
	if again.Get("MaxCount") != "2" {
		again = forms[2]
	}
	if flat(again) != flat(forms[0]) {
		t.Errorf("%s\nand then\n%s", flat(forms[0]), flat(again))
	}
	// What a batch has made is not made by a single launch, also if lists lack it.
	n := len(forms)
	if got := p.Create(t.Context(), []cloud.Intent{intent("t1")})[0]; got.Err != nil || got.Instance.ID != muster.InstanceID(id(1)) || len(c.of("RunInstances")) != n {
		t.Errorf("%+v", got)
	}
	// Nor by another process, once lists have it.
	c.set("DescribeInstances", func(url.Values) reply {
		return reservations(instanceXML(id(1), "running", 0, "muster-owner=c1", "muster-tokens=t1/t2", "muster-nodes=a/b", "muster-pool=main")+
			instanceXML(id(2), "terminated", 1, "muster-owner=c1", "muster-tokens=t1/t2", "muster-nodes=a/b", "muster-pool=main"), "")
	})
	other := c.open(nil)
	both := other.Create(t.Context(), []cloud.Intent{intent("t1"), intent("t2")})
	if both[0].Err != nil || both[0].Instance.Tags.Node != "a" || !muster.IsKind(both[1].Err, muster.FaultTransient) || len(c.of("RunInstances")) != n {
		t.Errorf("%+v", both)
	}
}

func TestAPoolGoesOnWithItsImageForAnHour(t *testing.T) {
	var p pins
	p.m = map[pinKey]*pin{}
	k, at := pinKey{"main", archAMD}, testNow
	for _, c := range []struct {
		pass         time.Duration
		newest, want string
	}{{0, "a", "a"}, {time.Hour, "a", "a"}, {0, "b", "a"}, {59 * time.Minute, "b", "a"}, {time.Minute, "b", "b"}, {0, "c", "b"}} {
		at = at.Add(c.pass)
		if got := p.choose(k, machineImage{id: c.newest}, at); got.id != c.want {
			t.Errorf("at %s, with %s the newest: %s", at, c.newest, got.id)
		}
	}
	if got := p.choose(pinKey{"other", archAMD}, machineImage{id: "c"}, at); got.id != "c" {
		t.Errorf("a new pool: %s", got.id)
	}
	p.drop("b")
	if got := p.choose(k, machineImage{id: "c"}, at); got.id != "c" {
		t.Errorf("once EC2 does not know it: %s", got.id)
	}
}

func TestListByPages(t *testing.T) {
	c := newCanned(t)
	now := testNow
	p := c.open(func(c *Config) { c.Now = func() time.Time { return now } })
	mine := func(n int, state string, more ...string) string {
		return instanceXML(id(n), state, 0, append([]string{"muster-owner=c1", fmt.Sprintf("muster-token=t%d", n), "muster-node=n", "muster-pool=main"}, more...)...)
	}
	c.by["DescribeInstances"] = func(f url.Values) reply {
		switch f.Get("NextToken") {
		case "":
			return reservations(mine(1, "running")+mine(2, "terminated")+instanceXML(id(3), "running", 0, "muster-owner=other", "muster-token=t")+instanceXML(id(4), "running", 0), "two")
		case "two":
			return reservations(mine(1, "running")+mine(5, "stopped", "muster-intent=hold")+
				instanceXML(id(6), "running", 1, "muster-owner=c1", "muster-pool=main", "muster-tokens=a/b", "muster-nodes=x/y"), "")
		}
		return refuse(400, "InvalidPaginationToken", "expired")
	}
	first, err := p.List(t.Context(), "")
	if err != nil || len(first.Instances) != 1 || first.Next != "two" || first.Complete {
		t.Fatalf("%v %+v", err, first)
	}
	second, err := p.List(t.Context(), first.Next)
	if err != nil || len(second.Instances) != 2 || second.Next != "" || !second.Complete {
		t.Fatalf("%v %+v", err, second)
	}
	if i := second.Instances[0]; i.Tags.Intent != muster.NodeHold {
		t.Errorf("%+v", i)
	}
	if i := second.Instances[1]; i.Tags != (cloud.Tags{Owner: "c1", Token: "b", Node: "y", Pool: "main"}) || i.Created == 0 {
		t.Errorf("%+v", i)
	}
	if _, err := p.List(t.Context(), "bad"); !muster.IsKind(err, muster.FaultTransient) {
		t.Errorf("%v", err)
	}
	if again, err := p.List(t.Context(), "two"); err != nil || again.Complete {
		t.Errorf("the end of a list whose begin is not known is complete: %v", err)
	}
	f := c.of("DescribeInstances")[0]
	if f.Get("MaxResults") != "1000" || f.Get("Filter.1.Name") != "tag:muster-owner" || f.Get("Filter.1.Value.1") != "c1" || f.Get("Filter.2.Name") != "instance-state-name" {
		t.Errorf("%v", f)
	}
	// A new instance whose token is not there yet is not shown, and the list is not complete.
	now = time.Date(2026, 1, 1, 0, 1, 0, 0, time.UTC)
	c.set("DescribeInstances", func(url.Values) reply { return reservations(instanceXML(id(9), "pending", 0, "muster-owner=c1"), "") })
	if got, err := p.List(t.Context(), ""); err != nil || got.Complete {
		t.Errorf("%v %+v", err, got)
	}
	now = now.Add(time.Hour)
	if got, err := p.List(t.Context(), ""); err != nil || !got.Complete || len(got.Instances) != 1 {
		t.Errorf("%v %+v", err, got)
	}
}

// EC2 can refuse a machine that it has accepted. The list shows it with the reason until it is
// destroyed.
func TestRefusalAfterAcceptance(t *testing.T) {
	c := newCanned(t)
	p := c.open(nil)
	c.by["RunInstances"] = func(url.Values) reply { return launched(1, 2) }
	if got := p.Create(t.Context(), []cloud.Intent{intent("t1"), intent("t2")}); got[0].Err != nil || got[1].Err != nil {
		t.Fatal(got)
	}
	c.set("DescribeInstances", func(f url.Values) reply {
		if f.Get("Filter.1.Name") != "instance-id" {
			return reservations(instanceXML(id(2), "running", 1, "muster-owner=c1", "muster-tokens=t1/t2", "muster-nodes=n-t1/n-t2"), "")
		}
		dead := instanceXML(id(1), "terminated", 0)
		return reservations(strings.Replace(dead, "<tagSet>", "<stateReason><code>Server.InsufficientInstanceCapacity</code><message>None left</message></stateReason><tagSet>", 1), "")
	})
	for range 2 {
		got, err := p.List(t.Context(), "")
		if err != nil || !got.Complete || len(got.Instances) != 2 {
			t.Fatalf("%v %+v", err, got)
		}
		i := got.Instances[1]
		want := muster.Scope{Provider: "aws", Offering: "m7i.large", Zone: "eu-central-1a", Market: muster.OnDemand}
		if i.ID != muster.InstanceID(id(1)) || i.Tags.Token != "t1" || i.Failed == nil || i.Failed.Kind != muster.FaultCapacity || i.Failed.Scope != want {
			t.Errorf("%+v", i)
		}
	}
	c.set(actionTerminate, terminated)
	if errs := p.Destroy(t.Context(), []muster.InstanceID{muster.InstanceID(id(1))}); errs[0] != nil {
		t.Fatal(errs[0])
	}
	if got, _ := p.List(t.Context(), ""); len(got.Instances) != 1 {
		t.Errorf("%+v", got)
	}
	for code, want := range map[string]muster.FaultKind{"Client.VolumeLimitExceeded": muster.FaultQuota, "Server.InternalError": muster.FaultTransient, "Client.InternalError": muster.FaultInvalid,
		"Server.SpotInstanceTermination": muster.FaultCapacity, "Client.InstanceInitiatedShutdown": "", "Client.UserInitiatedShutdown": "", "": ""} {
		f := p.failedBy(code, "", false, about{offering: "m7i.large"})
		if (f == nil) != (want == "") || f != nil && f.Kind != want {
			t.Errorf("%s: %v", code, f)
		}
	}
}

// terminated is the answer to TerminateInstances for all ids.
func terminated(f url.Values) reply {
	inner := ""
	for i := 1; f.Has(fmt.Sprint("InstanceId.", i)); i++ {
		inner += `<item><instanceId>` + f.Get(fmt.Sprint("InstanceId.", i)) + `</instanceId><currentState><code>32</code><name>shutting-down</name></currentState></item>`
	}
	return ok(f.Get("Action"), "<instancesSet>"+inner+"</instancesSet>")
}

// One id that EC2 does not know makes it end none of them.
func TestDestroyIsAllOrNothing(t *testing.T) {
	c := newCanned(t)
	now := testNow
	p := c.open(func(c *Config) { c.Now = func() time.Time { return now } })
	c.by["RunInstances"] = func(url.Values) reply { return launched(1, 4) }
	var intents []cloud.Intent
	var ids []muster.InstanceID
	for i := range 4 {
		intents, ids = append(intents, intent(fmt.Sprint("t", i))), append(ids, muster.InstanceID(id(1+i)))
	}
	if got := p.Create(t.Context(), intents); got[3].Err != nil {
		t.Fatal(got)
	}
	missing := []string{id(2), id(4)}
	c.by[actionTerminate] = func(f url.Values) reply {
		for _, m := range missing {
			if strings.Contains(f.Encode(), m) {
				return refuse(400, "InvalidInstanceID.NotFound", "The instance ID '"+m+"' does not exist")
			}
		}
		return terminated(f)
	}
	unknown := []muster.InstanceID{muster.InstanceID(id(99))}
	if errs := p.Destroy(t.Context(), unknown); !muster.IsKind(errs[0], muster.FaultTransient) {
		t.Errorf("a new process cannot know that it is gone: %v", errs)
	}
	now = now.Add(listLag)
	errs := p.Destroy(t.Context(), append(slices.Clone(ids), "", "i-xyz", muster.InstanceID(id(99)), ids[0]))
	for i, err := range errs {
		young := i == 1 || i == 3
		if young != muster.IsKind(err, muster.FaultTransient) || !young && err != nil {
			t.Errorf("%d: %v", i, err)
		}
	}
	if n := len(c.of(actionTerminate)); n != 3 {
		t.Errorf("%d calls", n)
	}
	now = now.Add(youngFor)
	if errs := p.Destroy(t.Context(), ids); errs[1] != nil || errs[3] != nil {
		t.Errorf("once they are not young: %v", errs)
	}
	// Another owner's, as far as this process knows nothing of it.
	c.set("DescribeInstances", func(url.Values) reply {
		return reservations(instanceXML(id(50), "running", 0, "muster-owner=other")+instanceXML(id(51), "running", 0, "muster-owner=c1", "muster-token=x"), "")
	})
	errs = p.Destroy(t.Context(), []muster.InstanceID{muster.InstanceID(id(50)), muster.InstanceID(id(51))})
	if !muster.IsKind(errs[0], muster.FaultNotFound) || errs[1] != nil {
		t.Errorf("%v", errs)
	}
	if last := c.of(actionTerminate); strings.Contains(last[len(last)-1].Encode(), id(50)) {
		t.Error("another owner's instance was to be ended")
	}
	// A protected instance makes EC2 refuse the others of its zone, too.
	c.set("DescribeInstances", func(url.Values) reply {
		return reservations(instanceXML(id(60), "running", 0, "muster-owner=c1", "muster-token=y")+instanceXML(id(61), "running", 0, "muster-owner=c1", "muster-token=x"), "")
	})
	c.set(actionTerminate, func(f url.Values) reply {
		if strings.Contains(f.Encode(), id(60)) {
			return refuse(400, "OperationNotPermitted", "The instance is protected")
		}
		return terminated(f)
	})
	errs = p.Destroy(t.Context(), []muster.InstanceID{muster.InstanceID(id(60)), muster.InstanceID(id(61))})
	if !muster.IsKind(errs[0], muster.FaultInvalid) || errs[1] != nil {
		t.Errorf("%v", errs)
	}
}

func TestOffersHavePricesAndFamilies(t *testing.T) {
	c := newCanned(t)
	p := c.open(func(c *Config) {
		c.Types, c.Markets = driver.Globs{"m7*"}, []muster.Market{muster.OnDemand, muster.Spot}
		c.Prices = driver.Prices{Table: map[string]float64{"m7i.xlarge": 0.15}, Factor: 0.5}
	})
	offers, err := p.Offers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var text []string
	for _, o := range offers {
		text = append(text, fmt.Sprintf("%s %s %s %s cap %s, %s, %s x%d, %t %s", o.Name, o.Zone, o.Market, o.Price, o.PriceCap, o.Capacity, o.Family, o.Weight, o.Available, o.Attributes["arch"]))
	}
	// The price has the disk's: 50 GiB for 0.0065 an hour. An operator's price has not. m7g has none.
	want := []string{
		"m7i.large eu-central-1a on-demand 0.056507 cap 0, " + offers[0].Capacity.String() + ", standard x2, true amd64",
		"m7i.large eu-central-1a spot 0.046507 cap 0.056507, " + offers[0].Capacity.String() + ", standard-spot x2, true amd64",
		"m7i.large eu-central-1b on-demand 0.056507 cap 0, " + offers[0].Capacity.String() + ", standard x2, false amd64",
		"m7i.xlarge eu-central-1a on-demand 0.15 cap 0, " + offers[3].Capacity.String() + ", standard x4, true amd64",
		"m7i.xlarge eu-central-1b on-demand 0.15 cap 0, " + offers[3].Capacity.String() + ", standard x4, false amd64",
	}
	if got := strings.Join(text, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("%s\nnot\n%s", got, strings.Join(want, "\n"))
	}
	if m := offers[0].Capacity.Memory; m < 7*muster.GiB || m >= 8*muster.GiB {
		t.Errorf("memory %s", m)
	}
	// All of it is in memory now.
	calls := len(c.calls)
	if _, err := p.Offers(t.Context()); err != nil || len(c.calls) != calls {
		t.Errorf("%v, %d more calls", err, len(c.calls)-calls)
	}
}

// GPUs are those that EC2 says a type has. Of two sizes of one model the larger has its own name.
func TestGPUs(t *testing.T) {
	c := newCanned(t)
	gpu := func(name, gpus string) string {
		return strings.TrimSuffix(typeXML(name, 4, 16384, "x86_64"), "</item>") + "<gpuInfo><gpus>" + gpus + "</gpus></gpuInfo></item>"
	}
	one := func(name string, count, mib int) string {
		return fmt.Sprintf("<item><name>%s</name><manufacturer>NVIDIA</manufacturer><count>%d</count><memoryInfo><sizeInMiB>%d</sizeInMiB></memoryInfo></item>", name, count, mib)
	}
	types := []string{gpu("g5.xlarge", one("A10G", 1, 22888)), gpu("g6f.large", one("L4", 1, 2861)), gpu("p4d.24xlarge", one("A100", 8, 40960)),
		gpu("p4de.24xlarge", one("A100", 8, 81920)), gpu("g4ad.xlarge", one("Radeon Pro V520", 1, 8192)), gpu("p3dn.24xlarge", one("V100", 8, 32768))}
	var zones strings.Builder
	prices := map[string]float64{}
	for _, text := range types {
		_, rest, _ := strings.Cut(text, "<instanceType>")
		name, _, _ := strings.Cut(rest, "<")
		prices[name] = 1
		fmt.Fprintf(&zones, "<item><instanceType>%s</instanceType><location>eu-central-1a</location></item>", name)
	}
	c.by["DescribeInstanceTypes"] = func(url.Values) reply {
		return ok("DescribeInstanceTypes", "<instanceTypeSet>"+strings.Join(types, "")+"</instanceTypeSet>")
	}
	c.by["DescribeInstanceTypeOfferings"] = func(url.Values) reply {
		return ok("DescribeInstanceTypeOfferings", "<instanceTypeOfferingSet>"+zones.String()+"</instanceTypeOfferingSet>")
	}
	p := c.open(func(c *Config) { c.Types, c.Prices.Table = driver.Globs{"g*", "p*"}, prices })
	offers, err := p.Offers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range offers {
		got = append(got, fmt.Sprint(o.Name, " ", o.Devices, " ", o.Attributes[driver.AttributeGPUMemory]))
	}
	want := []string{"g4ad.xlarge [1 gpu Radeon-Pro-V520] 8", "g5.xlarge [1 gpu A10G] 24", "g6f.large [1 gpu L4-3GB] 3", "p3dn.24xlarge [8 gpu V100-32GB] 32",
		"p4d.24xlarge [8 gpu A100] 40", "p4de.24xlarge [8 gpu A100-80GB] 80"}
	if !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
}

func TestOffersWithoutAPriceList(t *testing.T) {
	denied := reply{status: 400, body: `{"__type":"com.amazon.coral.service#AccessDeniedException","Message":"not authorized to perform: pricing:GetProducts"}`}
	c := newCanned(t)
	c.by["AWSPriceListService.GetProducts"] = func(url.Values) reply { return denied }
	if _, err := c.open(nil).Offers(t.Context()); !muster.IsKind(err, muster.FaultAuth) || !strings.Contains(err.Error(), "pricing:GetProducts") {
		t.Errorf("%v", err)
	}
	some := c.open(func(c *Config) { c.Prices.Table = map[string]float64{"m7i.large": 0.2} })
	if offers, err := some.Offers(t.Context()); err != nil || len(offers) != 2 || offers[0].Price.String() != "0.2" {
		t.Errorf("%v %+v", err, offers)
	}
}

func TestTypesByDefaultAndTooMany(t *testing.T) {
	c := newCanned(t)
	var types, zones strings.Builder
	for _, family := range []string{"m5", "m6i", "m7i", "m7a", "m8i", "m7i-flex", "m7gd", "c7i", "c6a", "c5", "r7i", "r7iz", "r8a"} {
		for size, cpus := range map[string]int{"large": 2, "8xlarge": 32, "16xlarge": 64} {
			types.WriteString(typeXML(family+"."+size, cpus, cpus*4096, "x86_64"))
			fmt.Fprintf(&zones, `<item><instanceType>%s.%s</instanceType><location>eu-central-1a</location></item>`, family, size)
		}
	}
	c.by["DescribeInstanceTypes"] = func(url.Values) reply {
		return ok("DescribeInstanceTypes", "<instanceTypeSet>"+types.String()+"</instanceTypeSet>")
	}
	p := c.open(func(c *Config) { c.Types = nil })
	found, err := p.types.Get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, t := range found {
		names = append(names, t.name)
	}
	if got := strings.Join(names, " "); got != "c6a.8xlarge c6a.large c7i.8xlarge c7i.large m7a.8xlarge m7a.large m8i.8xlarge m8i.large r7i.8xlarge r7i.large r8a.8xlarge r8a.large" {
		t.Errorf("%s", got)
	}
	types.Reset()
	zones.Reset()
	prices := map[string]float64{}
	for i := range 301 {
		name := fmt.Sprintf("x%d.large", i)
		types.WriteString(typeXML(name, 2, 4096, "x86_64"))
		fmt.Fprintf(&zones, `<item><instanceType>%s</instanceType><location>eu-central-1a</location></item>`, name)
		prices[name] = 1
	}
	c.by["DescribeInstanceTypeOfferings"] = func(url.Values) reply {
		return ok("DescribeInstanceTypeOfferings", "<instanceTypeOfferingSet>"+zones.String()+"</instanceTypeOfferingSet>")
	}
	many := c.open(func(c *Config) { c.Types, c.Prices.Table = driver.Globs{"x1.*", "x*"}, prices })
	if _, err := many.Offers(t.Context()); !muster.IsKind(err, muster.FaultInvalid) || !strings.Contains(err.Error(), `"x*" alone gives 301`) {
		t.Errorf("%v", err)
	}
}

func TestFamilies(t *testing.T) {
	for name, want := range map[string]string{"m7i.large": "standard", "t3.micro": "standard", "g5.xlarge": "g", "vt1.3xlarge": "g", "p4d.24xlarge": "p", "p5.48xlarge": "p5", "inf2.xlarge": "inf",
		"trn1.2xlarge": "trn", "x2idn.16xlarge": "x", "u-6tb1.metal": "u", "dl1.24xlarge": "dl", "hpc7a.96xlarge": "hpc", "i4i.large": "standard", "d3.xlarge": "standard", "h1.2xlarge": "standard"} {
		if got := familyOf(name, muster.OnDemand); got != want {
			t.Errorf("%s: %s", name, got)
		}
		if got := familyOf(name, muster.Spot); got != want+"-spot" {
			t.Errorf("%s: %s", name, got)
		}
	}
}

func TestNotices(t *testing.T) {
	c := newCanned(t)
	p := c.open(func(c *Config) { c.Markets = []muster.Market{muster.Spot} })
	row := func(n int, code, at string) string {
		return fmt.Sprintf(`<item><spotInstanceRequestId>sir-%d</spotInstanceRequestId><instanceId>%s</instanceId><status><code>%s</code><updateTime>%s</updateTime></status></item>`, n, id(n), code, at)
	}
	c.by["DescribeSpotInstanceRequests"] = func(url.Values) reply {
		return ok("DescribeSpotInstanceRequests", "<spotInstanceRequestSet>"+row(1, "instance-terminated-no-capacity", "2026-01-01T00:59:00.000Z")+row(2, "instance-terminated-no-capacity", "2025-12-31T00:59:00.000Z")+"</spotInstanceRequestSet>")
	}
	got, err := p.Notices(t.Context())
	if err != nil || len(got) != 1 || got[0].Instance != muster.InstanceID(id(1)) || got[0].At != muster.At(testNow.Add(time.Minute)) || got[0].Kind != cloud.NoticeTaken {
		t.Errorf("%v %+v", err, got)
	}
	if got, err := c.open(nil).Notices(t.Context()); err != nil || got != nil || len(c.of("DescribeSpotInstanceRequests")) != 1 {
		t.Errorf("without spot: %v %v", got, err)
	}
}

func TestLeftoversAreLookedAtAgain(t *testing.T) {
	c := newCanned(t)
	p := c.open(nil)
	c.by["DescribeVolumes"] = func(url.Values) reply {
		return ok("DescribeVolumes", `<volumeSet><item><volumeId>vol-1</volumeId><status>available</status><createTime>2026-01-01T00:00:00.000Z</createTime><tagSet><item><key>muster-owner</key><value>c1</value></item></tagSet></item>`+
			`<item><volumeId>vol-2</volumeId><status>in-use</status><tagSet><item><key>muster-owner</key><value>c1</value></item></tagSet></item>`+
			`<item><volumeId>vol-3</volumeId><status>available</status><tagSet><item><key>muster-owner</key><value>other</value></item></tagSet></item></volumeSet>`)
	}
	c.by["DeleteVolume"] = func(f url.Values) reply {
		if f.Get("VolumeId") != "vol-1" {
			t.Errorf("%v is deleted", f)
		}
		return ok("DeleteVolume", "<return>true</return>")
	}
	left, err := p.Leftovers(t.Context())
	if err != nil || len(left) != 1 || left[0].ID != "vol-1" || left[0].Created == 0 {
		t.Fatalf("%v %+v", err, left)
	}
	errs := p.Remove(t.Context(), append(left, cloud.Leftover{Kind: "volume", ID: "vol-3"}, cloud.Leftover{Kind: "volume", ID: "vol-gone"}, cloud.Leftover{Kind: "address", ID: "a"}))
	if errs[0] != nil || errs[1] != nil || errs[2] != nil || !muster.IsKind(errs[3], muster.FaultInvalid) {
		t.Errorf("%v", errs)
	}
	c.set("DeleteVolume", func(url.Values) reply { return refuse(400, "InvalidVolume.NotFound", "gone") })
	if errs := p.Remove(t.Context(), left); errs[0] != nil {
		t.Errorf("%v", errs)
	}
}

func TestAccess(t *testing.T) {
	c := newCanned(t)
	now := testNow
	p := c.open(func(c *Config) { c.Now, c.PublicIP = func() time.Time { return now }, true })
	c.by["RunInstances"] = func(url.Values) reply { return launched(1, 1) }
	if got := p.Create(t.Context(), []cloud.Intent{intent("t1")})[0]; got.Err != nil {
		t.Fatal(got.Err)
	}
	for range 3 {
		if _, err := p.Access(t.Context(), muster.InstanceID(id(1))); !muster.IsKind(err, muster.FaultUnavailable) {
			t.Errorf("%v", err)
		}
	}
	n := len(c.of("DescribeInstances"))
	if n != 2 { // one of the create
		t.Errorf("%d lists", n)
	}
	now = now.Add(askEvery)
	c.set("DescribeInstances", func(url.Values) reply {
		return reservations(strings.Replace(instanceXML(id(1), "running", 0, "muster-owner=c1", "muster-token=t1"), "<tagSet>", "<ipAddress>203.0.113.7</ipAddress><tagSet>", 1), "")
	})
	got, err := p.Access(t.Context(), muster.InstanceID(id(1)))
	if err != nil || got.Address != "203.0.113.7" || got.User != "admin" || got.KeyFile != "/key" {
		t.Errorf("%v %+v", err, got)
	}
	now = now.Add(listLag)
	for _, none := range []muster.InstanceID{"", "i-none", muster.InstanceID(id(8))} {
		if _, err := p.Access(t.Context(), none); !muster.IsKind(err, muster.FaultNotFound) {
			t.Errorf("%q: %v", none, err)
		}
	}
}

// A server that was started again knows nothing of the instance that the one before made a moment ago,
// and lists may not show it yet, or not its tags. It must not be taken for one that is gone.
func TestYoungAfterARestart(t *testing.T) {
	c, now := newCanned(t), testNow
	p := c.open(func(c *Config) { c.Now = func() time.Time { return now } })
	it := muster.InstanceID(id(1))
	both := func(kind muster.FaultKind) {
		t.Helper()
		if _, err := p.Access(t.Context(), it); !muster.IsKind(err, kind) {
			t.Errorf("access: %v, want %s", err, kind)
		}
		if err := p.SetTags(t.Context(), it, cloud.Tags{Owner: "c1", Token: "t1"}); !muster.IsKind(err, kind) {
			t.Errorf("tags: %v, want %s", err, kind)
		}
	}
	both(muster.FaultTransient)
	now = now.Add(listLag - time.Second)
	both(muster.FaultTransient)
	if n := len(c.of("CreateTags")); n != 0 {
		t.Errorf("%d tags are set on an instance that may be anybody's", n)
	}
	// By now no lag can hide it.
	now = now.Add(time.Second)
	both(muster.FaultNotFound)
	// It is there, and its tags are not.
	c.set("DescribeInstances", func(url.Values) reply {
		return reservations(strings.Replace(instanceXML(id(1), "running", 0), "<tagSet></tagSet>", "", 1), "")
	})
	launch := launchTime(t, instanceXML(id(1), "running", 0))
	now = launch.Add(youngFor - time.Second)
	both(muster.FaultTransient)
	now = launch.Add(youngFor)
	both(muster.FaultNotFound)
}

// launchTime is when an instance was launched, as EC2 says it.
func launchTime(t *testing.T, text string) time.Time {
	t.Helper()
	_, rest, _ := strings.Cut(text, "<launchTime>")
	stamp, _, _ := strings.Cut(rest, "</launchTime>")
	at, err := time.Parse(time.RFC3339, stamp)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// An answer can be lost before, in the middle of, and after the body, and before it was asked for.
func TestLostAnswers(t *testing.T) {
	c := newCanned(t)
	p := c.open(nil)
	whole := launched(1, 1).body
	create := func(ctx context.Context) error { return p.Create(ctx, []cloud.Intent{intent("t1")})[0].Err }
	if _, err := p.Offers(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, body := range []string{"", whole[:200], whole} {
		c.set("RunInstances", func(url.Values) reply { return reply{status: 200, body: body, cut: true} })
		if err := create(t.Context()); !muster.IsKind(err, muster.FaultAmbiguous) {
			t.Errorf("after %d bytes: %v", len(body), err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	c.set("RunInstances", func(url.Values) reply { cancel(); return reply{status: 200, body: whole, cut: true} })
	if err := create(ctx); !muster.IsKind(err, muster.FaultAmbiguous) {
		t.Errorf("cancelled in the middle: %v", err)
	}
	if err := create(ctx); !muster.IsKind(err, muster.FaultTransient) {
		t.Errorf("cancelled before: %v", err)
	}
}

func TestResolveSaysWhatIsMissing(t *testing.T) {
	c := newCanned(t)
	c.by["RunInstances"] = func(f url.Values) reply {
		switch {
		case f.Get("DryRun") != "true":
			t.Error("an instance is made")
		case f.Get("InstanceMarketOptions.MarketType") == "spot":
			return refuse(403, "UnauthorizedOperation", "You are not authorized to perform this operation.")
		}
		return refuse(412, "DryRunOperation", "Request would have succeeded, but DryRun flag is set.")
	}
	c.by["DescribeSpotInstanceRequests"] = func(url.Values) reply { return ok("DescribeSpotInstanceRequests", "") }
	p := c.open(func(c *Config) {
		c.Subnets, c.Markets = append(c.Subnets, "subnet-none"), []muster.Market{muster.OnDemand, muster.Spot}
	})
	got, err := p.Resolve(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, r := range got {
		fmt.Fprintf(&text, "%s: %s: %s\n", r.What, r.Value, r.Problem)
	}
	for _, want := range []string{"region: eu-central-1: \n", "subnet: subnet-0a in eu-central-1a, 100 free addresses: \n", "subnet: subnet-0b in eu-central-1b, 0 free addresses: it has no free",
		"subnet: subnet-none: it is not there", "image: debian-12 for amd64: ami-0123 (debian-12): \n",
		"right: ec2:RunInstances of m7i.large in subnet-0a, on-demand: \n", "right: ec2:RunInstances of m7i.large in subnet-0a, spot: ", "UnauthorizedOperation", "right: ec2:DescribeVolumes: \n", "not tried"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is not in\n%s", want, text.String())
		}
	}
	c.set("DescribeSubnets", func(url.Values) reply { return reply{status: http.StatusBadGateway} })
	if _, err := p.Resolve(t.Context()); !muster.IsKind(err, muster.FaultTransient) {
		t.Errorf("%v", err)
	}
}

// The rate of launches is told beside those that count instances, and falls to what EC2 takes.
func TestPacesTellOfLaunches(t *testing.T) {
	c := newCanned(t)
	p := c.open(nil)
	want := cloud.PaceUse{Calls: "launch", Rate: cloud.Rate{PerSecond: 2, Burst: 5}}
	if got := p.Paces(); len(got) != 1 || got[0] != want {
		t.Errorf("%+v", got)
	}
	p.throttle.Least = 4 * time.Second
	want.Rate.PerSecond = 0.25
	if got := p.Paces(); len(got) != 1 || got[0] != want {
		t.Errorf("%+v", got)
	}
}
