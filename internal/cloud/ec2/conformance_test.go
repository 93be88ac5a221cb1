package ec2

import (
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/cloudtest"
)

// books is a canned cloud that has instances. It is as simple as EC2 is on a good day; package
// ec2test plays the bad ones.
type books struct {
	*canned
	mu        sync.Mutex
	instances []*entryOf
	tokens    map[string][]*entryOf
	params    map[string]string
}

// entryOf is one instance in the books.
type entryOf struct {
	id, state, zone, kind string
	index                 int
	spot                  bool
	tags                  map[string]string
}

func newBooks(t *testing.T) *books {
	b := &books{canned: newCanned(t), tokens: map[string][]*entryOf{}, params: map[string]string{}}
	b.by["RunInstances"] = b.run
	b.by["DescribeInstances"] = b.describe
	for action, state := range map[string]string{actionTerminate: stateTerminated, actionStop: stateStopped, actionStart: stateRunning} {
		b.by[action] = func(f url.Values) reply { return b.change(f, state) }
	}
	b.by["CreateTags"] = b.tag
	b.by["DescribeSpotInstanceRequests"] = func(url.Values) reply { return ok("DescribeSpotInstanceRequests", "") }
	return b
}

func (e *entryOf) xml() string {
	var tags []string
	for k, v := range e.tags {
		tags = append(tags, k+"="+v)
	}
	text := instanceXML(e.id, e.state, e.index, tags...)
	text = strings.Replace(text, "eu-central-1a", e.zone, 1)
	text = strings.Replace(text, "m7i.large", e.kind, 1)
	if e.spot {
		text = strings.Replace(text, "<tagSet>", "<instanceLifecycle>spot</instanceLifecycle><tagSet>", 1)
	}
	return text
}

func (b *books) run(f url.Values) reply {
	b.mu.Lock()
	defer b.mu.Unlock()
	if f.Get("DryRun") == "true" {
		return refuse(412, codeDryRun, "Request would have succeeded.")
	}
	token, all := f.Get("ClientToken"), f.Encode()
	if had, used := b.params[token]; used && had != all {
		return refuse(400, "IdempotentParameterMismatch", "Other parameters.")
	}
	b.params[token] = all
	made := b.tokens[token]
	if made == nil {
		n, _ := strconv.Atoi(f.Get("MaxCount"))
		for i := range n {
			e := &entryOf{id: id(len(b.instances) + 1), state: stateRunning, index: i, kind: f.Get("InstanceType"), zone: "eu-central-1a", tags: map[string]string{}, spot: f.Get("InstanceMarketOptions.MarketType") == "spot"}
			for k := 1; f.Has(fmt.Sprintf("TagSpecification.1.Tag.%d.Key", k)); k++ {
				e.tags[f.Get(fmt.Sprintf("TagSpecification.1.Tag.%d.Key", k))] = f.Get(fmt.Sprintf("TagSpecification.1.Tag.%d.Value", k))
			}
			b.instances, made = append(b.instances, e), append(made, e)
		}
		b.tokens[token] = made
	}
	inner := ""
	for _, e := range made {
		if e.state == stateTerminated {
			return refuse(400, "IdempotentInstanceTerminated", "It has ended.")
		}
		inner += e.xml()
	}
	return ok("RunInstances", "<instancesSet>"+inner+"</instancesSet>")
}

// passes reports whether an instance passes all filters.
func (e *entryOf) passes(f url.Values) bool {
	for n := 1; f.Has(fmt.Sprintf("Filter.%d.Name", n)); n++ {
		name := f.Get(fmt.Sprintf("Filter.%d.Name", n))
		own := map[string]string{"instance-id": e.id, "instance-state-name": e.state}[name]
		if key, ok := strings.CutPrefix(name, "tag:"); ok {
			own = e.tags[key]
		}
		hit := false
		for k := 1; f.Has(fmt.Sprintf("Filter.%d.Value.%d", n, k)); k++ {
			v := f.Get(fmt.Sprintf("Filter.%d.Value.%d", n, k))
			hit = hit || v == own || strings.HasPrefix(v, "*") && strings.Contains(own, strings.Trim(v, "*"))
		}
		if !hit {
			return false
		}
	}
	return true
}

func (b *books) describe(f url.Values) reply {
	b.mu.Lock()
	defer b.mu.Unlock()
	skip, _ := strconv.Atoi(f.Get("NextToken"))
	inner, next := "", ""
	const page = 5
	n := 0
	for _, e := range b.instances {
		if !e.passes(f) {
			continue
		}
		if n++; n <= skip {
			continue
		}
		if n > skip+page {
			next = strconv.Itoa(skip + page)
			break
		}
		inner += e.xml()
	}
	return reservations(inner, next)
}

func (b *books) find(id string) *entryOf {
	i := slices.IndexFunc(b.instances, func(e *entryOf) bool { return e.id == id })
	if i < 0 {
		return nil
	}
	return b.instances[i]
}

func (b *books) change(f url.Values, state string) reply {
	b.mu.Lock()
	defer b.mu.Unlock()
	inner := ""
	for i := 1; f.Has(fmt.Sprint("InstanceId.", i)); i++ {
		e := b.find(f.Get(fmt.Sprint("InstanceId.", i)))
		if e == nil {
			return refuse(400, codeNotFound, "The instance ID '"+f.Get(fmt.Sprint("InstanceId.", i))+"' does not exist")
		}
		if e.state != stateTerminated {
			e.state = state
		}
		inner += `<item><instanceId>` + e.id + `</instanceId><currentState><name>` + e.state + `</name></currentState></item>`
	}
	return ok(f.Get("Action"), "<instancesSet>"+inner+"</instancesSet>")
}

func (b *books) tag(f url.Values) reply {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.find(f.Get("ResourceId.1"))
	if e == nil {
		return refuse(400, codeNotFound, "none")
	}
	for k := 1; f.Has(fmt.Sprintf("Tag.%d.Key", k)); k++ {
		e.tags[f.Get(fmt.Sprintf("Tag.%d.Key", k))] = f.Get(fmt.Sprintf("Tag.%d.Value", k))
	}
	return ok("CreateTags", "<return>true</return>")
}

// Open is cloudtest.Cloud's.
func (b *books) Open(t *testing.T, owner string) cloud.Provider {
	return b.open(func(c *Config) {
		c.Owner, c.Now, c.Subnets = owner, time.Now, c.Subnets[:2]
		c.Markets = []muster.Market{muster.OnDemand, muster.Spot}
	})
}

func TestConformance(t *testing.T) {
	cloudtest.Run(t, 20*time.Second, func(t *testing.T) cloudtest.Cloud { return newBooks(t) })
}

// What was stopped keeps its tags and starts again; what has ended does not.
func TestStopAndStart(t *testing.T) {
	b := newBooks(t)
	p := b.Open(t, "c1").(*Provider)
	made := p.Create(t.Context(), []cloud.Intent{intent("t1")})[0]
	if made.Err != nil {
		t.Fatal(made.Err)
	}
	ids := []muster.InstanceID{made.Instance.ID, "i-none"}
	for _, do := range []func() []error{
		func() []error { return p.Start(t.Context(), ids) }, func() []error { return p.Stop(t.Context(), ids) }, func() []error { return p.Stop(t.Context(), ids) },
		func() []error { return p.Start(t.Context(), ids) }, func() []error { return p.Stop(t.Context(), ids) },
	} {
		if errs := do(); errs[0] != nil || !muster.IsKind(errs[1], muster.FaultNotFound) {
			t.Errorf("%v", errs)
		}
	}
	if l, err := p.List(t.Context(), ""); err != nil || len(l.Instances) != 1 {
		t.Errorf("%v %+v", err, l)
	}
	if errs := p.Destroy(t.Context(), ids); errs[0] != nil || errs[1] != nil {
		t.Errorf("%v", errs)
	}
	if errs := p.Start(t.Context(), ids); !muster.IsKind(errs[0], muster.FaultNotFound) {
		t.Errorf("%v", errs)
	}
}

// 64 machines take eight launches, of which EC2 allows two a second after the first five.
func TestSixtyFourMachines(t *testing.T) {
	b := newBooks(t)
	p := b.Open(t, "c1")
	if _, err := p.Offers(t.Context()); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	var wg sync.WaitGroup
	var mu sync.Mutex
	ids := map[muster.InstanceID]bool{}
	for call := range 8 {
		wg.Go(func() {
			var intents []cloud.Intent
			for i := range 8 {
				intents = append(intents, intent(fmt.Sprintf("t%d-%d", call, i)))
			}
			for _, got := range p.Create(t.Context(), intents) {
				mu.Lock()
				if got.Err != nil {
					t.Error(got.Err)
				}
				ids[got.Instance.ID] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	if n := len(b.of("RunInstances")); n != 8 || len(ids) != 64 {
		t.Errorf("%d launches, %d instances", n, len(ids))
	}
	t.Logf("64 machines in %s", took.Round(time.Millisecond))
}

// Whatever becomes of the answers, a token has one instance once its create has succeeded.
func TestLostAnswersMakeNothingTwice(t *testing.T) {
	for seed := range uint64(4) {
		b := newBooks(t)
		p := b.Open(t, "c1").(*Provider)
		p.launch.Rate.PerSecond, p.patience = 1000, 0
		var mu sync.Mutex
		dice := rand.New(rand.NewPCG(seed, 1))
		b.set("RunInstances", func(f url.Values) reply {
			mu.Lock()
			what := dice.IntN(6)
			mu.Unlock()
			switch what {
			case 0:
				return refuse(503, "RequestLimitExceeded", "Request limit exceeded.")
			case 1:
				return reply{status: 500} // nothing was made
			case 2:
				answer := b.run(f)
				return reply{status: 200, body: answer.body[:len(answer.body)/2], cut: true}
			case 3:
				b.run(f)
				return refuse(500, "InternalError", "An internal error has occurred")
			case 4:
				if f.Get("NetworkInterface.1.SubnetId") == "subnet-0a" {
					return refuse(400, codeSubnetFull, "None left.")
				}
			}
			return b.run(f)
		})
		var wg sync.WaitGroup
		for call := range 8 {
			wg.Go(func() {
				var intents []cloud.Intent
				for i := range 1 + call {
					intents = append(intents, intent(fmt.Sprintf("t%d-%d", call, i)))
				}
				for try := 0; len(intents) > 0 && try < 200; try++ {
					var again []cloud.Intent
					for i, got := range p.Create(t.Context(), intents) {
						if got.Err != nil {
							again = append(again, intents[i])
						}
					}
					// What is asked for with what changes from try to try.
					if intents = again; len(intents) > 1 {
						intents = append(intents[1:], intents[0])
					}
				}
				if len(intents) > 0 {
					t.Errorf("%d were never made", len(intents))
				}
			})
		}
		wg.Wait()
		tokens := map[muster.Token]string{}
		for _, e := range b.instances {
			w := wireInstance{Index: e.index}
			for k, v := range e.tags {
				w.Tags = append(w.Tags, wireTag{k, v})
			}
			token := w.tags().Token
			if other := tokens[token]; other != "" {
				t.Errorf("seed %d: %s and %s for %s", seed, other, e.id, token)
			}
			tokens[token] = e.id
		}
		if len(tokens) != 36 {
			t.Errorf("seed %d: %d of 36", seed, len(tokens))
		}
	}
}
