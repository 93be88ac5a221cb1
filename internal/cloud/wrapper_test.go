package cloud_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/fake"
)

func account(t *testing.T, script string) *fake.Cloud {
	t.Helper()
	c := fake.New(fake.Config{Offerings: []muster.Offering{{Provider: "fake", Name: "small", Market: muster.OnDemand}}})
	if err := c.Play(script); err != nil {
		t.Fatal(err)
	}
	return c
}

func intents(tokens ...muster.Token) []cloud.Intent {
	out := make([]cloud.Intent, len(tokens))
	for i, t := range tokens {
		out[i] = cloud.Intent{Token: t, Node: muster.NodeID("n" + t), Pool: "p", Offering: "small"}
	}
	return out
}

func TestCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := cloud.NewCounted(account(t, "create: capacity once\nlist: slow 2s\nlist: fail once").Owner("o"))
		before := len(p.Counts())
		ctx := context.Background()
		p.Create(ctx, intents("a", "b", "c"))
		_, _ = p.List(ctx, "")
		_, _ = p.List(ctx, "")
		p.Destroy(ctx, []muster.InstanceID{"i-0001"})
		got := p.Counts()
		if len(got) != before {
			t.Errorf("%d series at the start, %d now: they are to be there from the start", before, len(got))
		}
		for _, want := range []cloud.Count{{cloud.OpCreate, muster.FaultCapacity, 1}, {cloud.OpCreate, cloud.Succeeded, 2}, {cloud.OpList, muster.FaultInternal, 1},
			{cloud.OpList, cloud.Succeeded, 1}, {cloud.OpDestroy, cloud.Succeeded, 1}, {cloud.OpTags, cloud.Succeeded, 0}} {
			if !slices.Contains(got, want) {
				t.Errorf("no %+v in %+v", want, got)
			}
		}
		if calls, took := p.Took(cloud.OpList); calls != 2 || took != 4*time.Second {
			t.Errorf("%d lists took %s", calls, took)
		}
	})
}

func TestLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := account(t, "")
		p := cloud.NewLimited(c.Owner("o"), cloud.Rates{Create: cloud.Rate{PerSecond: 2, Burst: 3}})
		began := time.Now()
		ctx := context.Background()
		// Three at once, and then one each half second; lists are not held up.
		var when []time.Duration
		for _, in := range intents("a", "b", "c", "d", "e") {
			if err := p.Create(ctx, []cloud.Intent{in})[0].Err; err != nil {
				t.Fatal(err)
			}
			when = append(when, time.Since(began))
			if _, err := p.List(ctx, ""); err != nil || time.Since(began) != when[len(when)-1] {
				t.Errorf("a list waited for creates, or failed: %v", err)
			}
		}
		if want := []time.Duration{0, 0, 0, 500 * time.Millisecond, time.Second}; !slices.Equal(when, want) {
			t.Errorf("created at %v, want %v", when, want)
		}
		// What gives up gives back.
		time.Sleep(time.Minute)
		p.Create(ctx, intents("f", "g", "h"))
		short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		err := p.Create(short, intents("i"))[0].Err
		if !muster.IsKind(err, muster.FaultTransient) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("given up: %v", err)
		}
		began = time.Now()
		p.Create(ctx, intents("j"))
		if took := time.Since(began); took != 400*time.Millisecond {
			t.Errorf("the next one waited %s", took)
		}
		if n := c.Calls().Intents; n != 9 {
			t.Errorf("%d intents came through, want 9", n)
		}
		// Half a second twice, the wait that was given up, and the last. Only creates have a rate.
		want := []cloud.PaceUse{{Calls: "create", Rate: cloud.Rate{PerSecond: 2, Burst: 3}, Waited: 1500 * time.Millisecond}}
		if got := p.Paces(); !slices.Equal(got, want) {
			t.Errorf("paces %+v, want %+v", got, want)
		}
	})
}

// While calls wait, the pace says how many and for how long; so does that of the provider inside.
func TestPacesTellWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := cloud.NewLimited(account(t, "").Owner("o"), cloud.Rates{Tags: cloud.Rate{PerSecond: 1}})
		p := cloud.NewLimited(inner, cloud.Rates{Destroy: cloud.Rate{PerSecond: 2, Burst: 2}})
		var wg sync.WaitGroup
		began := time.Now()
		for range 6 {
			wg.Go(func() { p.Destroy(t.Context(), []muster.InstanceID{"i"}) })
		}
		for _, want := range []struct {
			at   time.Duration
			busy cloud.PaceUse
		}{
			{100 * time.Millisecond, cloud.PaceUse{Waiting: 4, Last: 1900 * time.Millisecond}},
			{1100 * time.Millisecond, cloud.PaceUse{Waiting: 2, Last: 900 * time.Millisecond, Waited: 1500 * time.Millisecond}},
			{2100 * time.Millisecond, cloud.PaceUse{Waited: 5 * time.Second}},
		} {
			time.Sleep(want.at - time.Since(began))
			want.busy.Calls, want.busy.Rate = "destroy", cloud.Rate{PerSecond: 2, Burst: 2}
			all := []cloud.PaceUse{want.busy, {Calls: "tags", Rate: cloud.Rate{PerSecond: 1}}}
			if got := p.Paces(); !slices.Equal(got, all) {
				t.Errorf("after %s: %+v, want %+v", want.at, got, all)
			}
		}
		wg.Wait()
	})
}

// Whatever is asked at once, no second has more than its rate and the burst.
func TestLimitedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := cloud.NewLimited(account(t, "").Owner("o"), cloud.Rates{Destroy: cloud.Rate{PerSecond: 10, Burst: 5}})
		var mu sync.Mutex
		var at []time.Time
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				p.Destroy(context.Background(), []muster.InstanceID{"i"})
				mu.Lock()
				at = append(at, time.Now())
				mu.Unlock()
			})
		}
		wg.Wait()
		slices.SortFunc(at, time.Time.Compare)
		for i, from := range at {
			n := 0
			for _, x := range at[i:] {
				if x.Sub(from) < time.Second {
					n++
				}
			}
			if n > 15 {
				t.Fatalf("%d in one second", n)
			}
		}
		if took := at[99].Sub(at[0]); took != 9500*time.Millisecond {
			t.Errorf("100 took %s", took)
		}
	})
}

// sloppy is a driver whose filter of owners is wrong.
type sloppy struct {
	cloud.Provider
	c         *fake.Cloud
	wrong     bool
	destroyed []muster.InstanceID
}

func (s *sloppy) List(context.Context, string) (cloud.Listing, error) {
	all := s.c.Instances()
	return cloud.Listing{Instances: append(all, append(all, cloud.Instance{Tags: cloud.Tags{Owner: "o", Token: "x"}}, cloud.Instance{ID: "i-bare"})...), Complete: true}, nil
}

func (s *sloppy) Destroy(_ context.Context, ids []muster.InstanceID) []error {
	s.destroyed = append(s.destroyed, ids...)
	return nil
}

func (s *sloppy) Create(ctx context.Context, in []cloud.Intent) []cloud.Created {
	out := s.Provider.Create(ctx, in)
	if s.wrong {
		out[0].Instance.Tags.Owner = "somebody"
	}
	return out
}

func TestOwned(t *testing.T) {
	c := account(t, "")
	theirs := c.Add(cloud.Tags{Owner: "other", Token: "t", Node: "n", Pool: "p"}, "small")
	d := &sloppy{Provider: c.Owner("o"), c: c}
	p := cloud.NewOwned(d, "o")
	ctx := context.Background()
	mine := p.Create(ctx, intents("a"))[0].Instance
	page, err := p.List(ctx, "")
	if err != nil || len(page.Instances) != 1 || page.Instances[0].ID != mine.ID {
		t.Fatalf("%+v, %v", page, err)
	}
	errs := p.Destroy(ctx, []muster.InstanceID{theirs.ID, "", mine.ID})
	if !muster.IsKind(errs[0], muster.FaultNotFound) || errs[1] != nil || !muster.IsKind(errs[2], muster.FaultAmbiguous) {
		t.Errorf("%v", errs)
	}
	if !slices.Equal(d.destroyed, []muster.InstanceID{mine.ID}) {
		t.Errorf("the driver was told to destroy %q", d.destroyed)
	}
	if err := p.SetTags(ctx, theirs.ID, theirs.Tags); !muster.IsKind(err, muster.FaultNotFound) {
		t.Errorf("tags of another's: %v", err)
	}
	if err := p.SetTags(ctx, mine.ID, theirs.Tags); !muster.IsKind(err, muster.FaultInvalid) {
		t.Errorf("another's tags: %v", err)
	}
	d.wrong = true
	if r := p.Create(ctx, intents("b"))[0]; !muster.IsKind(r.Err, muster.FaultAmbiguous) || r.Instance.ID != "" {
		t.Errorf("%+v", r)
	}
}

func TestLabelled(t *testing.T) {
	c := account(t, "")
	p := cloud.NewLabelled(c.Owner("o"), map[string]string{"cost": "centre-7", "stage": "test"})
	in := intents("a")
	in[0].Labels = map[string]string{"stage": "live"}
	id := p.Create(context.Background(), in)[0].Instance.ID
	if l := c.Labels(id); l["cost"] != "centre-7" || l["stage"] != "live" || len(in[0].Labels) != 1 {
		t.Errorf("labels %v, the intent has %v", l, in[0].Labels)
	}
}

func TestAs(t *testing.T) {
	bare := account(t, "").Owner("o")
	p := cloud.NewCounted(cloud.NewLabelled(cloud.NewOwned(bare, "o"), nil))
	if s, ok := cloud.As[cloud.Suspender](p); !ok || s != bare.(cloud.Suspender) {
		t.Error("what a driver can do is not seen through its wrappers")
	}
	if _, ok := cloud.As[cloud.Dialer](p); ok {
		t.Error("a driver that is no Dialer is taken for one")
	}
	if c, ok := cloud.As[*cloud.Counted](p); !ok || c != p {
		t.Error("a wrapper is not found")
	}
	if _, ok := cloud.As[cloud.Dialer](nil); ok {
		t.Error("nothing is a Dialer")
	}
}

func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &cloud.Pace{Rate: cloud.Rate{PerSecond: 2, Burst: 5}}
		began := time.Now()
		for range 8 {
			if !p.Wait(t.Context(), 1) {
				t.Fatal("it ended")
			}
		}
		if took := time.Since(began); took != 1500*time.Millisecond {
			t.Errorf("8 calls took %s", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if p.Wait(ctx, 1) {
			t.Error("the context has ended")
		}
	})
}
