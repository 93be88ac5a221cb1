package ec2test

import (
	"bytes"
	"context"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// got is an answer as a test looks at it.
type got struct {
	status int
	code   string
	text   string
	err    error
}

// ask makes a signed call. Parameters are NAME=VALUE.
func ask(t *testing.T, s *Server, action string, params ...string) got {
	t.Helper()
	form := url.Values{"Action": {action}, "Version": {"2016-11-15"}}
	for _, p := range params {
		k, v, _ := strings.Cut(p, "=")
		form.Set(k, v)
	}
	return send(t, s, aws.Credentials{AccessKeyID: "AKIDTEST", SecretAccessKey: "secret"}, form)
}

func send(t *testing.T, s *Server, key aws.Credentials, form url.Values) got {
	t.Helper()
	body := []byte(form.Encode())
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://ec2.test/", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if err := v4.NewSigner().SignHTTP(context.Background(), key, r, hexSum(body), "ec2", "eu-central-1", time.Now()); err != nil {
		t.Fatal(err)
	}
	a, err := s.Transport().RoundTrip(r)
	if err != nil {
		return got{err: err}
	}
	text, err := io.ReadAll(a.Body)
	var e struct {
		Code string `xml:"Errors>Error>Code"`
	}
	_ = xml.Unmarshal(text, &e)
	return got{a.StatusCode, e.Code, string(text), err}
}

// launchOf are the parameters of a launch, with changes.
func launchOf(token string, changes ...string) []string {
	p := map[string]string{"ImageId": "ami-0123456789abcdef0", "InstanceType": "m7i.large", "MinCount": "1", "MaxCount": "1", "ClientToken": token,
		"SubnetId": "subnet-0a", "TagSpecification.1.ResourceType": "instance", "TagSpecification.1.Tag.1.Key": "muster-owner", "TagSpecification.1.Tag.1.Value": "c1"}
	for _, c := range changes {
		k, v, _ := strings.Cut(c, "=")
		p[k] = v
	}
	var out []string
	for k, v := range maps.All(p) {
		out = append(out, k+"="+v)
	}
	return out
}

func server(t *testing.T, script string) *Server {
	t.Helper()
	s, err := New(Config{Script: script})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

const first = "i-00000000000000001"

// step is one call of a test, and what its answer must have.
type step struct {
	wait   time.Duration
	action string
	params []string
	code   string
	has    string
	lacks  string
}

func TestMeannesses(t *testing.T) {
	run := func(token string, changes ...string) step {
		return step{action: "RunInstances", params: launchOf(token, changes...)}
	}
	refused := func(code string, s step) step { s.code = code; return s }
	has := func(text string, s step) step { s.has = text; return s }
	lacks := func(text string, s step) step { s.lacks = text; return s }
	after := func(d time.Duration, s step) step { s.wait = d; return s }
	call := func(action string, params ...string) step { return step{action: action, params: params} }
	list := call("DescribeInstances")
	end := call("TerminateInstances", "InstanceId.1="+first)
	owner := "<value>c1</value>"
	spot := "InstanceMarketOptions.MarketType=spot"
	for name, of := range map[string]struct {
		script string
		steps  []step
	}{
		"unknown parameter": {"", []step{refused("UnknownParameter", run("t", "SubnetID=x")), refused("UnknownParameter", call("DescribeInstances", "Filter.0.Name=x")),
			refused("InvalidAction", call("RunInstance")), refused("InvalidParameterValue", call("DescribeInstances", "Filter.1.Name=tags", "Filter.1.Value.1=x"))}},
		"new ones are missing": {"list: late 60s", []step{run("t"), lacks(first, list), refused("InvalidInstanceID.NotFound", call("DescribeInstances", "InstanceId.1="+first)),
			refused("InvalidInstanceID.NotFound", call("CreateTags", "ResourceId.1="+first, "Tag.1.Key=a", "Tag.1.Value=b")), after(time.Minute, has(first, list))}},
		"tags come later":     {"list: tagless 30s", []step{has(owner, run("t")), lacks(owner, has(first, list)), after(30*time.Second, has(owner, list))}},
		"ended ones linger":   {"", []step{run("t"), end, has(owner, list), after(12*time.Minute, has(first, lacks(owner, list))), after(time.Hour, lacks(first, list))}},
		"other parameters":    {"", []step{run("t"), refused("IdempotentParameterMismatch", run("t", "InstanceType=m7i.xlarge")), run("t", "SubnetId=subnet-0b")}},
		"mismatch after no":   {"create: capacity once", []step{refused("InsufficientInstanceCapacity", run("t")), refused("IdempotentParameterMismatch", run("t", "InstanceType=m7i.xlarge")), run("t")}},
		"replay of a dead":    {"", []step{run("t"), end, refused("IdempotentInstanceTerminated", run("t"))}},
		"replay of a corpse":  {"token: corpse", []step{run("t"), end, has("terminated", run("t"))}},
		"replay without tags": {"token: untagged", []step{has(owner, run("t")), lacks(owner, has(first, run("t")))}},
		"all or nothing":      {"", []step{run("t"), refused("InvalidInstanceID.NotFound", call("TerminateInstances", "InstanceId.1="+first, "InstanceId.2=i-00000000000000009")), has("running", list)}},
		"malformed id":        {"", []step{refused("InvalidInstanceID.Malformed", call("TerminateInstances", "InstanceId.1=i-../x"))}},
		"rates": {"account: rates 0.4", []step{run("a"), run("b"), refused("RequestLimitExceeded", run("c")), after(1250*time.Millisecond, run("c")),
			refused("RequestLimitExceeded", run("d"))}},
		"capacity by zone": {"create: capacity zone=eu-central-1b", []step{run("a"), refused("InsufficientInstanceCapacity", run("b", "SubnetId=subnet-0b"))}},
		"partial": {"create: partial max=2", []step{lacks("i-00000000000000003", has("i-00000000000000002", run("a", "MaxCount=5"))),
			refused("InsufficientInstanceCapacity", run("b", "MinCount=3", "MaxCount=3"))}},
		"fails later": {"instance: fails Server.InsufficientInstanceCapacity after=5s", []step{has("pending", run("t")),
			after(6*time.Second, has("<code>Server.InsufficientInstanceCapacity</code>", list))}},
		"expired pages": {"list: page max=5\nlist: expire 1m", []step{run("t", "MaxCount=6"), has("token-1", list),
			refused("InvalidPaginationToken", call("DescribeInstances", "NextToken=token-1", "Filter.1.Name=instance-id", "Filter.1.Value.1=x")),
			has("i-00000000000000006", call("DescribeInstances", "NextToken=token-1")), after(2*time.Minute, refused("InvalidPaginationToken", call("DescribeInstances", "NextToken=token-1")))}},
		"spot with notice": {"instance: taken after=10s in=2m", []step{run("t", spot), after(11*time.Second, has("instance-terminated-no-capacity", call("DescribeSpotInstanceRequests"))),
			has("running", list), after(2*time.Minute, has("Server.SpotInstanceTermination", list))}},
		"spot without":   {"instance: taken silent after=10s", []step{run("t", spot), has("fulfilled", call("DescribeSpotInstanceRequests")), after(11*time.Second, has("Server.SpotInstanceTermination", list))}},
		"rotated":        {"account: rotate from=1m", []step{run("t"), after(time.Minute, refused("AuthFailure", list))}},
		"clock":          {"account: clock -16m", []step{refused("RequestExpired", list)}},
		"strangers":      {"account: foreign 2", []step{has("a-stranger", list)}},
		"untagged":       {"account: untagged 2", []step{has("i-00000000000000002", list)}},
		"full subnet":    {"subnet: free 1 id=subnet-0a", []step{run("a"), call("StopInstances", "InstanceId.1="+first), refused("InsufficientFreeAddressesInSubnet", run("b")), run("c", "SubnetId=subnet-0a2")}},
		"quota":          {"account: quota family=standard max=2", []step{run("a"), end, refused("VcpuLimitExceeded", run("b")), after(61*time.Second, run("b"))}},
		"dry run":        {"", []step{refused("DryRunOperation", run("t", "DryRun=true")), lacks(first, list), refused("DryRunOperation", call("DescribeSubnets", "DryRun=true"))}},
		"from inside":    {"instance: dies after=5s", []step{run("t", "InstanceInitiatedShutdownBehavior=terminate"), after(5*time.Second, has("Client.InstanceInitiatedShutdown", list))}},
		"a volume stays": {"instance: leaves", []step{run("t"), end, has("<status>available</status>", call("DescribeVolumes")), call("DeleteVolume", "VolumeId=vol-00000000000000001"), lacks("vol-", call("DescribeVolumes"))}},
		"console":        {"", []step{run("t"), has("<output></output>", call("GetConsoleOutput", "InstanceId="+first)), after(time.Minute, lacks("<output></output>", call("GetConsoleOutput", "InstanceId="+first)))}},
		"user data":      {"", []step{refused("InvalidUserData.Malformed", run("t", "UserData="+strings.Repeat("AAAA", 6000)))}},
		"two networks":   {"", []step{refused("InvalidParameterCombination", run("t", "NetworkInterface.1.DeviceIndex=0"))}},
		"reserved tag":   {"", []step{refused("InvalidParameterValue", run("t", "TagSpecification.1.Tag.1.Key=aws:x"))}},
		"wrong zone":     {"", []step{refused("Unsupported", run("t", "InstanceType=g6.xlarge", "SubnetId=subnet-0b"))}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := server(t, of.script)
				for n, step := range of.steps {
					time.Sleep(step.wait)
					a := ask(t, s, step.action, step.params...)
					if a.err != nil || a.code != step.code || !strings.Contains(a.text, step.has) || step.lacks != "" && strings.Contains(a.text, step.lacks) {
						t.Errorf("step %d, %s: want code %q, with %q, without %q; got %v\n%s", n, step.action, step.code, step.has, step.lacks, a.err, a.text)
					}
				}
				if idle := s.Idle(); len(idle) > 0 {
					t.Errorf("never struck: %v", idle)
				}
			})
		})
	}
}

// Until both replicas know an instance, it comes and goes: which one answers a call is chance.
func TestReplicasDisagree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := server(t, "list: late 10s..2m")
		if a := ask(t, s, "RunInstances", launchOf("t", "MaxCount=20")...); a.code != "" {
			t.Fatal(a)
		}
		came, went := false, false
		for before := false; s.now().Sub(s.Made()[0].Created) < 2*time.Minute; time.Sleep(time.Second) {
			now := strings.Contains(ask(t, s, "DescribeInstances").text, first)
			came, went = came || now && !before, went || before && !now
			before = now
		}
		if !came || !went {
			t.Errorf("it came: %v, and went: %v", came, went)
		}
		if a := ask(t, s, "DescribeInstances"); strings.Count(a.text, "<instanceId>") != 20 {
			t.Errorf("in the end not all are there: %v", a)
		}
	})
}

// What moves between two pages is on both, or on none.
func TestPagesMove(t *testing.T) {
	s := server(t, "list: page max=5\nlist: move")
	if a := ask(t, s, "RunInstances", launchOf("t", "MaxCount=10")...); a.code != "" {
		t.Fatal(a)
	}
	twice, never := false, false
	for range 50 {
		all := ""
		for next := "first"; next != ""; {
			var params []string
			if next != "first" {
				params = []string{"NextToken=" + next}
			}
			a := ask(t, s, "DescribeInstances", params...)
			all += a.text
			_, rest, _ := strings.Cut(a.text, "<nextToken>")
			next, _, _ = strings.Cut(rest, "</nextToken>")
		}
		for n := 1; n <= 10; n++ {
			switch strings.Count(all, fmt.Sprintf("<instanceId>i-%017x</instanceId>", n)) {
			case 0:
				never = true
			case 2:
				twice = true
			}
		}
	}
	if !twice || !never {
		t.Errorf("twice: %v, never: %v", twice, never)
	}
}

// An answer that is lost was made, in whatever part of it the connection ended.
func TestLostAnswers(t *testing.T) {
	for script, want := range map[string]string{"lost before": "", "lost middle": "<RunInst", "lost after": "</RunInstancesResponse>", "truncated": "<RunInst", "proxy made": "<html>"} {
		s := server(t, "create: "+script+" once")
		a := ask(t, s, "RunInstances", launchOf("t")...)
		lost := strings.HasPrefix(script, "lost")
		if lost != (a.err != nil) || !strings.Contains(a.text, want) {
			t.Errorf("%s: %v %q", script, a.err, a.text)
		}
		again := ask(t, s, "RunInstances", launchOf("t")...)
		if len(s.Made()) != 1 || !strings.Contains(again.text, first) {
			t.Errorf("%s: %v", script, s.Made())
		}
	}
}

// Of two launches with one token at once one makes the instance; the other waits or is refused.
func TestOneTokenAtOnce(t *testing.T) {
	for script, code := range map[string]string{"": "", "\ntoken: busy": "InternalError"} {
		synctest.Test(t, func(t *testing.T) {
			s := server(t, "create: slow 10s once"+script)
			done := make(chan got, 1)
			go func() { done <- ask(t, s, "RunInstances", launchOf("t")...) }()
			synctest.Wait()
			second := ask(t, s, "RunInstances", launchOf("t")...)
			if one := <-done; one.code != "" || second.code != code || len(s.Made()) != 1 {
				t.Errorf("%q: %v, then %v", script, one, second)
			}
		})
	}
}

func TestSignatures(t *testing.T) {
	s := server(t, "")
	form := url.Values{"Action": {"DescribeSubnets"}, "Version": {"2016-11-15"}}
	for code, key := range map[string]aws.Credentials{
		"":                      {AccessKeyID: "AKIDTEST", SecretAccessKey: "secret"},
		"SignatureDoesNotMatch": {AccessKeyID: "AKIDTEST", SecretAccessKey: "other"},
		"AuthFailure":           {AccessKeyID: "AKIDNEXT", SecretAccessKey: "next"},
	} {
		if a := send(t, s, key, form); a.code != code {
			t.Errorf("%q: %v", code, a)
		}
	}
	r, _ := http.NewRequest(http.MethodPost, "http://ec2.test/", strings.NewReader(form.Encode()))
	if a, err := s.Transport().RoundTrip(r); err != nil || a.StatusCode != 400 {
		t.Error(err, a)
	}
}

func TestScriptsThatAreWrong(t *testing.T) {
	for _, line := range []string{"nothing", "create: explode", "create:", "create: slow", "create: slow soon", "create: partial", "list: late 1s..x",
		"account: quota max=3", "create: capacity n%0=1", "create: capacity often", "call: lost behind", "create: capacity colour=red", "instance: taken after=1s"} {
		if _, err := New(Config{Script: line}); err == nil || !strings.Contains(err.Error(), "line 1") {
			t.Errorf("%q: %v", line, err)
		}
	}
}
