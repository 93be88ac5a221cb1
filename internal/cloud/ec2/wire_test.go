package ec2

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/driver"
)

// reply is what a canned cloud answers.
type reply struct {
	status int
	body   string
	header http.Header
	// cut: the connection is closed after that many bytes of the body.
	cut bool
}

// canned is a cloud that answers each action with a function. It notes the calls.
type canned struct {
	t  *testing.T
	mu sync.Mutex
	// by has the answers by action; those of launches and lists are tests' own.
	by    map[string]func(url.Values) reply
	calls []url.Values
}

func ok(action, inner string) reply {
	return reply{status: 200, body: `<?xml version="1.0" encoding="UTF-8"?>` + "\n" + `<` + action + `Response xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><requestId>r</requestId>` + inner + `</` + action + `Response>`}
}

func refuse(status int, code, message string) reply {
	return reply{status: status, body: `<?xml version="1.0" encoding="UTF-8"?>` + "\n" + `<Response><Errors><Error><Code>` + code + `</Code><Message>` + message + `</Message></Error></Errors><RequestID>r</RequestID></Response>`}
}

func newCanned(t *testing.T) *canned {
	c := &canned{t: t, by: map[string]func(url.Values) reply{}}
	static := func(action, inner string) { c.by[action] = func(url.Values) reply { return ok(action, inner) } }
	static("DescribeInstanceTypes", `<instanceTypeSet>`+typeXML("m7i.large", 2, 8192, "x86_64")+typeXML("m7i.xlarge", 4, 16384, "x86_64")+typeXML("m7g.large", 2, 8192, "arm64")+`</instanceTypeSet>`)
	zones := ""
	for _, t := range []string{"m7i.large", "m7i.xlarge", "m7g.large"} {
		for _, z := range []string{"eu-central-1a", "eu-central-1b"} {
			zones += `<item><instanceType>` + t + `</instanceType><locationType>availability-zone</locationType><location>` + z + `</location></item>`
		}
	}
	static("DescribeInstanceTypeOfferings", `<instanceTypeOfferingSet>`+zones+`</instanceTypeOfferingSet>`)
	static("DescribeSubnets", `<subnetSet>`+subnetXML("subnet-0a", "eu-central-1a", 100)+subnetXML("subnet-0a2", "eu-central-1a", 100)+subnetXML("subnet-0b", "eu-central-1b", 0)+`</subnetSet>`)
	static("DescribeSpotPriceHistory", `<spotPriceHistorySet>`+spotXML("m7i.large", "eu-central-1a", "0.05", 10)+spotXML("m7i.large", "eu-central-1a", "0.04", 20)+spotXML("m7i.large", "eu-central-1a", "0.09", 5)+`</spotPriceHistorySet>`)
	static("DescribeInstances", `<reservationSet/>`)
	static("CreateTags", `<return>true</return>`)
	static("DescribeVolumes", `<volumeSet/>`)
	c.by["DescribeImages"] = func(f url.Values) reply {
		arch := "x86_64"
		if strings.HasSuffix(f.Get("ImageId.1"), "arm") {
			arch = "arm64"
		}
		return ok("DescribeImages", `<imagesSet><item><imageId>`+f.Get("ImageId.1")+`</imageId><rootDeviceName>/dev/xvda</rootDeviceName><architecture>`+arch+`</architecture><name>debian-12</name></item></imagesSet>`)
	}
	return c
}

func typeXML(name string, cpus, mib int, arch string) string {
	return fmt.Sprintf(`<item><instanceType>%s</instanceType><currentGeneration>true</currentGeneration><bareMetal>false</bareMetal><vCpuInfo><defaultVCpus>%d</defaultVCpus></vCpuInfo><memoryInfo><sizeInMiB>%d</sizeInMiB></memoryInfo>`+
		`<processorInfo><supportedArchitectures><item>%s</item></supportedArchitectures></processorInfo><supportedUsageClasses><item>on-demand</item><item>spot</item></supportedUsageClasses></item>`, name, cpus, mib, arch)
}

func subnetXML(id, zone string, free int) string {
	return fmt.Sprintf(`<item><subnetId>%s</subnetId><availabilityZone>%s</availabilityZone><vpcId>vpc-1</vpcId><availableIpAddressCount>%d</availableIpAddressCount></item>`, id, zone, free)
}

func spotXML(name, zone, price string, minute int) string {
	return fmt.Sprintf(`<item><instanceType>%s</instanceType><productDescription>Linux/UNIX</productDescription><spotPrice>%s</spotPrice><timestamp>2026-01-01T00:%02d:00.000Z</timestamp><availabilityZone>%s</availabilityZone></item>`, name, price, minute, zone)
}

// instanceXML is an instance with tags, as name=value.
func instanceXML(id, state string, index int, tags ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `<item><instanceId>%s</instanceId><imageId>ami-0123</imageId><instanceState><code>0</code><name>%s</name></instanceState><amiLaunchIndex>%d</amiLaunchIndex><instanceType>m7i.large</instanceType>`+
		`<launchTime>2026-01-01T00:00:00.000Z</launchTime><placement><availabilityZone>eu-central-1a</availabilityZone></placement><privateIpAddress>10.0.0.%d</privateIpAddress><tagSet>`, id, state, index, index+1)
	for _, t := range tags {
		k, v, _ := strings.Cut(t, "=")
		fmt.Fprintf(&b, `<item><key>%s</key><value>%s</value></item>`, k, v)
	}
	return b.String() + `</tagSet></item>`
}

func id(n int) string { return fmt.Sprintf("i-%017x", n) }

// reservations wraps instances for DescribeInstances.
func reservations(inner, next string) reply {
	if next != "" {
		next = "<nextToken>" + next + "</nextToken>"
	}
	return ok("DescribeInstances", `<reservationSet><item><reservationId>r-1</reservationId><instancesSet>`+inner+`</instancesSet></item></reservationSet>`+next)
}

func (c *canned) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") == "" || r.Header.Get("X-Amz-Date") == "" {
		c.t.Error("a call is not signed")
	}
	if target := r.Header.Get("X-Amz-Target"); target != "" {
		c.json(w, r, target)
		return
	}
	if err := r.ParseForm(); err != nil {
		c.t.Error(err)
	}
	c.mu.Lock()
	c.calls = append(c.calls, r.PostForm)
	answer := c.by[r.PostForm.Get("Action")]
	c.mu.Unlock()
	a := refuse(400, "InvalidAction", "no such action")
	if answer != nil {
		a = answer(r.PostForm)
	}
	for k, v := range a.header {
		w.Header()[k] = v
	}
	if a.cut {
		w.Header().Set("Content-Length", fmt.Sprint(len(a.body)+100))
	}
	w.WriteHeader(a.status)
	_, _ = w.Write([]byte(a.body))
	if a.cut {
		panic(http.ErrAbortHandler)
	}
}

// json answers the parameter store and the price list.
func (c *canned) json(w http.ResponseWriter, r *http.Request, target string) {
	var ask struct {
		Name    string
		Filters []struct{ Field, Value string }
	}
	if err := json.NewDecoder(r.Body).Decode(&ask); err != nil {
		c.t.Error(err)
	}
	c.mu.Lock()
	answer := c.by[target]
	c.mu.Unlock()
	if answer != nil {
		a := answer(nil)
		w.WriteHeader(a.status)
		_, _ = w.Write([]byte(a.body))
		return
	}
	switch target {
	case "AmazonSSM.GetParameter":
		image := "ami-0123"
		if strings.HasSuffix(ask.Name, "arm64") {
			image = "ami-0123arm"
		}
		_, _ = fmt.Fprintf(w, `{"Parameter":{"Name":%q,"Value":%q}}`, ask.Name, image)
	case "AWSPriceListService.GetProducts":
		name := ""
		for _, f := range ask.Filters {
			if f.Field == "instanceType" {
				name = f.Value
			}
		}
		price := map[string]string{"m7i.large": "0.1", "m7i.xlarge": "0.2"}[name]
		entry := `{"product":{"attributes":{"instanceType":"` + name + `","marketoption":"OnDemand"}},"terms":{"OnDemand":{"x":{"priceDimensions":{"y":{"unit":"Hrs","pricePerUnit":{"USD":"` + price + `"}}}}}}}`
		_ = json.NewEncoder(w).Encode(map[string]any{"FormatVersion": "aws_v1", "PriceList": []string{entry}})
	default:
		c.t.Errorf("call of %s", target)
	}
}

// of are the calls of an action.
func (c *canned) of(action string) []url.Values {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []url.Values
	for _, f := range c.calls {
		if f.Get("Action") == action {
			out = append(out, f)
		}
	}
	return out
}

func (c *canned) set(action string, answer func(url.Values) reply) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.by[action] = answer
}

// testNow is the time in tests.
var testNow = time.Date(2026, 1, 1, 1, 0, 0, 0, time.UTC)

type keys struct{}

func (keys) Retrieve(context.Context) (aws.Credentials, error) {
	return aws.Credentials{AccessKeyID: "AKID", SecretAccessKey: "secret"}, nil
}

// open is a driver of the canned cloud; edit changes its configuration.
func (c *canned) open(edit func(*Config)) *Provider {
	c.t.Helper()
	s := httptest.NewServer(c)
	c.t.Cleanup(s.Close)
	cfg := Config{
		Name: "aws", Owner: "c1", Region: "eu-central-1", Subnets: []string{"subnet-0a", "subnet-0a2", "subnet-0b"}, SecurityGroups: []string{"sg-1"},
		Types: driver.Globs{"m7i.*"}, Endpoint: s.URL, Credentials: keys{}, Now: func() time.Time { return testNow }, Access: cloud.Access{KeyFile: "/key"},
	}
	if edit != nil {
		edit(&cfg)
	}
	p, err := New(cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	return p
}

func intent(token string) cloud.Intent {
	return cloud.Intent{Token: muster.Token(token), Node: muster.NodeID("n-" + token), Pool: "main", Offering: "m7i.large", Zone: "eu-central-1a", Market: muster.OnDemand}
}

// launched is the answer of a launch of n instances, from id from on.
func launched(from, n int) reply {
	inner := ""
	for i := range n {
		inner += instanceXML(id(from+i), "pending", i)
	}
	return ok("RunInstances", `<reservationId>r-1</reservationId><instancesSet>`+inner+`</instancesSet>`)
}
