package driver

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
)

func TestACallIsJudgedByWhetherItWasSent(t *testing.T) {
	hold := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hold }))
	defer s.Close()
	defer close(hold)
	do := func(ctx context.Context, url string, e Effect) *muster.Fault {
		ctx, sent := Trace(ctx)
		q, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		_, err = http.DefaultClient.Do(q)
		return sent.Fault("create", e, err)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if f := do(cancelled, s.URL, Makes); f.Kind != muster.FaultTransient || !errors.Is(f, context.Canceled) {
		t.Errorf("never sent: %v %v", f.Kind, f)
	}
	if f := do(t.Context(), "http://127.0.0.1:1", Makes); f.Kind != muster.FaultTransient {
		t.Errorf("refused connection: %v %v", f.Kind, f)
	}
	for e, want := range map[Effect]muster.FaultKind{Makes: muster.FaultAmbiguous, Reads: muster.FaultTransient} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if f := do(ctx, s.URL, e); f.Kind != want {
			t.Errorf("sent: %v %v", f.Kind, f)
		}
		cancel()
	}
}

// A transport that reports nothing may have sent the request before it failed.
func TestATransportWithoutATraceLeavesItUnclear(t *testing.T) {
	for e, want := range map[Effect]muster.FaultKind{Makes: muster.FaultAmbiguous, Reads: muster.FaultTransient} {
		ctx, sent := Trace(t.Context())
		q, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://cloud.test/", strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		_, err = (&http.Client{Transport: silent{}}).Do(q)
		if f := sent.Fault("create", e, err); f.Kind != want || !strings.Contains(f.Error(), "no answer") {
			t.Errorf("%v: %v %v", e, f.Kind, f)
		}
	}
}

type silent struct{}

func (silent) RoundTrip(*http.Request) (*http.Response, error) { return nil, errors.New("cut") }

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for text, want := range map[string]time.Duration{
		"": 20 * time.Second, "7": 7 * time.Second, "soon": 20 * time.Second, "-1": 20 * time.Second, "99999": time.Hour,
		"Fri, 02 Jan 2026 03:04:35 GMT": 30 * time.Second, "Fri, 02 Jan 2026 03:04:00 GMT": 20 * time.Second,
	} {
		h := http.Header{}
		h.Set("Retry-After", text)
		if got := RetryAfter(h, now, 20*time.Second); got != want {
			t.Errorf("%q: %s, not %s", text, got, want)
		}
	}
}

func TestSlowdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Slowdown
		for i, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
			sent := time.Now()
			// A call that was under way with one that was refused says nothing more.
			for range 2 {
				time.Sleep(time.Second)
				if got := s.Refused(sent); got != want*time.Second {
					t.Errorf("refusal %d: %s", i, got)
				}
			}
		}
		s.Succeeded()
		if got := s.Refused(time.Now()); got != time.Second {
			t.Errorf("after a success: %s", got)
		}
	})
}

func TestNamesFollowFromTheIntent(t *testing.T) {
	a := InstanceName("o", "t")
	if a != InstanceName("o", "t") || a == InstanceName("ot", "") || a == InstanceName("", "ot") || len(a) != 26 {
		t.Errorf("%q", a)
	}
	tags := cloud.Tags{Owner: "o", Token: "t", Node: "n", Pool: "p", Intent: muster.NodeHold}
	if m := TagMap(tags); TagsOf(m) != tags {
		t.Errorf("%v", m)
	}
	if m := TagMap(cloud.Tags{}); len(m) != 5 {
		t.Errorf("an empty intent has its tag: %v", m)
	}
}

func TestGlobsAndPrices(t *testing.T) {
	g := Globs{"m7i.*", "c7?.large"}
	for name, want := range map[string]bool{"m7i.large": true, "m7i-flex.large": false, "c7a.large": true, "c7a.xlarge": false} {
		if g.Match(name) != want {
			t.Errorf("%s: %t", name, !want)
		}
	}
	for _, bad := range []string{"", "[", "a/b"} {
		if err := (Globs{bad}).Check(); err == nil {
			t.Errorf("%q is taken for a pattern", bad)
		}
	}
	offers := make([]muster.Offering, MaxOfferings+1)
	for i := range offers {
		offers[i].Name = "m7i.large"
	}
	offers[0].Name = "c7a.large"
	if err := g.CheckCount(offers[1:]); err != nil {
		t.Error(err)
	}
	if err := g.CheckCount(offers); err == nil || !strings.Contains(err.Error(), `"m7i.*" alone gives 300`) {
		t.Errorf("%v", err)
	}
	p := Prices{Table: map[string]float64{"a": 0.12}, Factor: 0.5}
	for _, c := range []struct {
		name  string
		cloud float64
		want  muster.Price
		ok    bool
	}{{"a", 9, 120000, true}, {"a", -1, 120000, true}, {"b", 0.2, 100000, true}, {"b", -1, 0, false}} {
		if got, ok := p.Of(c.name, c.cloud); got != c.want || ok != c.ok {
			t.Errorf("%s at %g: %d, %t", c.name, c.cloud, got, ok)
		}
	}
	if (Prices{Table: map[string]float64{"a": -1}}).Check() == nil || (Prices{Factor: -1}).Check() == nil || p.Check() != nil {
		t.Error("checks of prices")
	}
}

func TestCachedReadsSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reads, fail := 0, false
		c := &Cached[int]{Life: time.Hour, Stale: time.Hour, Now: time.Now, Read: func(context.Context) (int, error) {
			if fail {
				return 0, errors.New("down")
			}
			time.Sleep(time.Second)
			reads++
			return reads, nil
		}}
		for range 5 {
			go func() { _, _ = c.Get(t.Context()) }()
		}
		synctest.Wait()
		if v, err := c.Get(t.Context()); v != 1 || err != nil {
			t.Errorf("%d, %v", v, err)
		}
		time.Sleep(time.Hour)
		fail = true
		if v, err := c.Get(t.Context()); v != 1 || err != nil {
			t.Errorf("the last value serves while reads fail: %d, %v", v, err)
		}
		time.Sleep(time.Hour)
		if _, err := c.Get(t.Context()); err == nil {
			t.Error("it serves for ever")
		}
		fail = false
		if v, _ := c.Get(t.Context()); v != 2 {
			t.Errorf("%d", v)
		}
		c.Forget(time.Minute)
		if v, _ := c.Get(t.Context()); v != 2 {
			t.Errorf("it was read just now: %d", v)
		}
		time.Sleep(2 * time.Minute)
		c.Forget(time.Minute)
		if v, _ := c.Get(t.Context()); v != 3 {
			t.Errorf("%d", v)
		}
	})
}

// Of several callers for a token one has it at a time, and one whose context ends gives up.
func TestTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Tokens
		first := l.Take(t.Context(), "a", "b")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if l.Take(ctx, "b", "c") != nil {
			t.Error("b was taken twice")
		}
		other := l.Take(t.Context(), "c")
		took := make(chan struct{})
		go func() {
			defer close(took)
			l.Take(t.Context(), "c", "a")()
		}()
		synctest.Wait()
		first()
		synctest.Wait()
		select {
		case <-took:
			t.Error("c was taken twice")
		default:
		}
		other()
		<-took
	})
}

func TestEachRunsAllAndNoMoreThanEightAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, done := time.Now(), make([]bool, 20)
		Each(len(done), AtOnce, func(i int) {
			time.Sleep(time.Second)
			done[i] = true
		})
		if took := time.Since(began); took != 3*time.Second || slices.Contains(done, false) {
			t.Errorf("%s, %v", took, done)
		}
	})
	Each(0, AtOnce, func(int) { t.Error("none was asked for") })
}

func TestReadingForgetsOnlyAfterAWholeList(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	page := func(next string, complete bool, ids ...muster.InstanceID) *cloud.Listing {
		out := &cloud.Listing{Next: next, Complete: complete}
		for _, id := range ids {
			out.Instances = append(out.Instances, cloud.Instance{ID: id})
		}
		return out
	}
	var r Reading
	if r.Page("", at(10), page("2", false, "a")) != nil {
		t.Error("a first page is a whole list")
	}
	gone := r.Page("2", at(12), page("", true, "b"))
	if gone == nil {
		t.Fatal("the last page ends no list")
	}
	for _, c := range []struct {
		id   muster.InstanceID
		seen int
		want bool
	}{{"a", 1, false}, {"b", 1, false}, {"c", 9, true}, {"c", 10, false}, {"c", 11, false}} {
		if got := gone(c.id, at(c.seen)); got != c.want {
			t.Errorf("%s, seen at %d: gone %v", c.id, c.seen, got)
		}
	}
	// Pages of two lists at once, a page without its list, and a list that ends unread: none is whole.
	r.Page("", at(20), page("2", false, "a"))
	r.Page("", at(21), page("x", false, "a"))
	if r.Page("2", at(22), page("", true)) != nil || r.Page("x", at(23), page("", true)) != nil {
		t.Error("pages of two lists are one")
	}
	if r.Page("", at(30), page("", false)) != nil {
		t.Error("a list that says it is not complete counts")
	}
	if r.Page("", at(40), page("", true)) == nil {
		t.Error("a list of one page does not count")
	}
}
