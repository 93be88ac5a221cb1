package ec2test_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/cloudtest"
	"github.com/musterhq/muster/internal/cloud/driver"
	"github.com/musterhq/muster/internal/cloud/ec2"
	"github.com/musterhq/muster/internal/cloud/ec2/ec2test"
)

type keys struct{}

func (keys) Retrieve(context.Context) (aws.Credentials, error) {
	return aws.Credentials{AccessKeyID: "AKIDTEST", SecretAccessKey: "secret"}, nil
}

// stand is a stand-in that drivers are opened on.
type stand struct{ *ec2test.Server }

func newStand(t *testing.T, script string) stand {
	t.Helper()
	s, err := ec2test.New(ec2test.Config{Script: script})
	if err != nil {
		t.Fatal(err)
	}
	return stand{s}
}

// Open is cloudtest.Cloud's.
func (s stand) Open(t *testing.T, owner string) cloud.Provider {
	t.Helper()
	p, err := ec2.New(ec2.Config{
		Name: "aws", Owner: owner, Region: "eu-central-1", Subnets: []string{"subnet-0a", "subnet-0b"}, SecurityGroups: []string{"sg-0c"},
		Types: driver.Globs{"m7i.*"}, Markets: []muster.Market{muster.OnDemand, muster.Spot}, Endpoint: "http://ec2.test/",
		Credentials: keys{}, Access: cloud.Access{KeyFile: "/key"}, Client: &http.Client{Transport: s.Transport()},
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestDriverConforms(t *testing.T) {
	cloudtest.Run(t, 20*time.Second, func(t *testing.T) cloudtest.Cloud { return newStand(t, "") })
}

// Whatever goes wrong on the way, each token has one instance in the end, and nothing is left.
func TestDriverLeavesNothing(t *testing.T) {
	for name, script := range map[string]string{
		"lag":         "list: late 0s..60s\nlist: tagless 0s..30s",
		"pages":       "list: page max=5\nlist: move 60%",
		"lost":        "create: lost before 20%\ncreate: lost middle 20%\ncreate: lost after 20%\ncreate: truncated 20%",
		"server":      "call: internal 10%\ncall: internal made 10%\ncall: proxy 10%\ncall: proxy made 10%",
		"throttled":   "account: rates 0.5",
		"capacity":    "create: capacity 30%\ncreate: partial max=2 30%",
		"strangers":   "account: foreign 7",
		"replays":     "token: untagged\ncreate: lost before 40%",
		"spot":        "instance: taken in=2m after=10s..60s n%3=0",
		"fails":       "instance: fails Server.InternalError after=5s n%3=1",
		"slow":        "create: slow 1s..20s",
		"truncations": "call: truncated 10%",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { buyAndEnd(t, newStand(t, script)) })
		})
	}
}

// buyAndEnd makes 12 instances as the fleet would and destroys all that it finds.
func buyAndEnd(t *testing.T, s stand) {
	p := s.Open(t, "c1")
	defer func() {
		if idle := s.Idle(); len(idle) > 0 {
			t.Errorf("never struck: %v", idle)
		}
	}()
	for k := range 12 {
		in := cloud.Intent{Token: muster.Token("t" + string(rune('a'+k))), Node: muster.NodeID("n" + string(rune('a'+k))), Pool: "main", Offering: "m7i.large",
			Zone: "eu-central-1a", Market: muster.OnDemand}
		if k%2 == 0 {
			in.Market = muster.Spot
		}
		for range 40 {
			if p.Create(t.Context(), []cloud.Intent{in})[0].Err == nil {
				break
			}
			time.Sleep(5 * time.Second)
		}
	}
	tokens := map[string]string{}
	for _, m := range s.Made() {
		token := m.Tags["muster-token"]
		if m.State != "terminated" && m.State != "shutting-down" && m.Tags["muster-owner"] == "c1" {
			if other := tokens[token]; other != "" {
				t.Errorf("%s and %s for token %s", other, m.ID, token)
			}
			tokens[token] = m.ID
		}
	}
	for range 200 {
		if len(s.Left("c1")) == 0 {
			return
		}
		sweep(t.Context(), p)
		time.Sleep(10 * time.Second)
	}
	t.Errorf("left: %v", s.Left("c1"))
}

// sweep destroys each instance of one list.
func sweep(ctx context.Context, p cloud.Provider) {
	var ids []muster.InstanceID
	for cursor := ""; ; {
		l, err := p.List(ctx, cursor)
		if err != nil {
			break
		}
		for i := range l.Instances {
			ids = append(ids, l.Instances[i].ID)
		}
		if cursor = l.Next; cursor == "" {
			break
		}
	}
	if len(ids) > 0 {
		p.Destroy(ctx, ids)
	}
}

// 64 machines within a fifth of what EC2 allows an account: launches of eight, of which the bucket has
// one and gets two in five seconds, so that the last is due after 17.5 s. A driver that gives up at a
// refusal takes minutes.
func TestDriverWithinAFifth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStand(t, "account: rates 0.2")
		p := s.Open(t, "c1")
		began := time.Now()
		var wg sync.WaitGroup
		for call := range 8 {
			wg.Go(func() {
				var intents []cloud.Intent
				for k := range 8 {
					name := fmt.Sprintf("%d-%d", call, k)
					intents = append(intents, cloud.Intent{Token: muster.Token("t" + name), Node: muster.NodeID("n" + name), Pool: "main", Offering: "m7i.large", Zone: "eu-central-1a", Market: muster.OnDemand})
				}
				for i, made := range p.Create(t.Context(), intents) {
					if made.Err != nil {
						t.Errorf("%s: %v", intents[i].Token, made.Err)
					}
				}
			})
		}
		wg.Wait()
		const due = 17500 * time.Millisecond
		if took := time.Since(began); len(s.Made()) != 64 || took > due*6/5 {
			t.Errorf("%d machines in %s; the account allows 64 in %s", len(s.Made()), took, due)
		}
	})
}
