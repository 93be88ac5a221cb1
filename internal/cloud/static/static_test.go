package static

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/cloudtest"
)

// lab is hosts that are asked for nothing but to be cleared and measured.
type lab struct {
	mu      sync.Mutex
	down    map[string]error // by address
	cleared []string
	wait    chan struct{} // not nil: clears wait for it
}

func (l *lab) Clear(ctx context.Context, a cloud.Access, node muster.NodeID) error {
	l.mu.Lock()
	wait := l.wait
	l.mu.Unlock()
	if wait != nil {
		select {
		case <-wait:
		case <-ctx.Done():
			return &muster.Fault{Kind: muster.FaultUnavailable, Err: ctx.Err()}
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.down[a.Address]; err != nil {
		return err
	}
	l.cleared = append(l.cleared, a.Address+" "+string(node))
	return nil
}

func (l *lab) Measure(_ context.Context, a cloud.Access) (muster.Resources, string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return muster.Resources{CPU: 8000, Memory: 32 * muster.GiB, Disk: 100 * muster.GiB}, "amd64", l.down[a.Address]
}

func (l *lab) set(address string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down == nil {
		l.down = map[string]error{}
	}
	l.down[address] = err
}

// room has records, with which several owners open drivers.
type room struct {
	// dir has the files of an earlier version.
	dir   string
	book  *book
	lab   *lab
	hosts int
}

func (r *room) config(owner string) Config {
	c := Config{Name: "lab", Dir: r.dir, Records: r.book, Owner: owner, Hosts: r.lab,
		Offerings: []muster.Offering{{Name: "rack", Zone: "cellar", Capacity: muster.Resources{CPU: 1000, Memory: muster.GiB}}}}
	for n := range r.hosts {
		c.List = append(c.List, Host{Name: fmt.Sprintf("h%d", n), Offering: "rack", Access: cloud.Access{Address: fmt.Sprintf("a%d", n)}})
	}
	return c
}

func (r *room) Open(t *testing.T, owner string) cloud.Provider {
	t.Helper()
	p, err := New(r.config(owner))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Wait)
	return p
}

func TestConformance(t *testing.T) {
	cloudtest.Run(t, time.Minute, func(t *testing.T) cloudtest.Cloud { return &room{book: newBook(), lab: &lab{}, hosts: 8} })
}

func open(t *testing.T, hosts int) (*room, *Provider) {
	r := &room{book: newBook(), lab: &lab{}, hosts: hosts}
	return r, r.Open(t, "c1").(*Provider)
}

func intent(token string) cloud.Intent {
	return cloud.Intent{Token: muster.Token(token), Node: muster.NodeID("n-" + token), Pool: "p", Offering: "rack", Zone: "cellar"}
}

func create(t *testing.T, p *Provider, token string) cloud.Instance {
	t.Helper()
	got := p.Create(t.Context(), []cloud.Intent{intent(token)})[0]
	if got.Err != nil {
		t.Fatal(got.Err)
	}
	return got.Instance
}

// There are as many as there are hosts, and what is given back is cleared first.
func TestHostsAreTakenAndGivenBack(t *testing.T) {
	r, p := open(t, 2)
	offers, err := p.Offers(t.Context())
	if err != nil || len(offers) != 1 || offers[0].Limit != 2 {
		t.Fatalf("%+v, %v", offers, err)
	}
	a, b := create(t, p, "a"), create(t, p, "b")
	full := p.Create(t.Context(), []cloud.Intent{intent("c")})[0].Err
	if !muster.IsKind(full, muster.FaultCapacity) || !strings.Contains(full.Error(), "all of its 2 hosts are in use") {
		t.Error(full)
	}
	if err := p.Destroy(t.Context(), []muster.InstanceID{a.ID})[0]; err != nil {
		t.Fatal(err)
	}
	c := create(t, p, "c")
	if c.ID == a.ID || !slices.Equal(r.lab.cleared, []string{"a0 n-a"}) {
		t.Errorf("%s again; cleared are %q", c.ID, r.lab.cleared)
	}
	if way, err := p.Access(t.Context(), c.ID); err != nil || way.Address != "a0" {
		t.Errorf("%+v, %v", way, err)
	}
	if _, err := p.Access(t.Context(), a.ID); !muster.IsKind(err, muster.FaultNotFound) {
		t.Errorf("the way to what was given back: %v", err)
	}
	_ = b
}

// A host that cannot be reached is given back, and is not free before it was cleared.
func TestHostThatCannotBeReached(t *testing.T) {
	r, p := open(t, 1)
	p.cfg.AgainAfter = time.Nanosecond
	a := create(t, p, "a")
	r.lab.set("a0", muster.Faultf(muster.FaultUnavailable, "host a0: no route"))
	if err := p.Destroy(t.Context(), []muster.InstanceID{a.ID})[0]; err != nil {
		t.Fatal(err)
	}
	list, err := p.List(t.Context(), "")
	p.Wait()
	if err != nil || len(list.Instances) != 0 || !list.Complete {
		t.Errorf("%+v, %v", list, err)
	}
	full := p.Create(t.Context(), []cloud.Intent{intent("b")})[0].Err
	if !muster.IsKind(full, muster.FaultCapacity) || !strings.Contains(full.Error(), "host h0 is to be cleared first (host a0: no route)") {
		t.Error(full)
	}
	p.Wait()
	// Also a server that starts anew knows it, and clears it when it is back.
	r.lab.set("a0", nil)
	again := r.Open(t, "c1").(*Provider)
	if _, err := again.List(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	again.Wait()
	if !slices.Equal(r.lab.cleared, []string{"a0 n-a"}) {
		t.Errorf("cleared: %q", r.lab.cleared)
	}
	create(t, again, "b")
}

// What is wrong for a moment is asked again by the fleet: the instance stays.
func TestClearThatFails(t *testing.T) {
	r, p := open(t, 1)
	a := create(t, p, "a")
	r.lab.set("a0", muster.Faultf(muster.FaultTransient, "a sandbox does not end"))
	if err := p.Destroy(t.Context(), []muster.InstanceID{a.ID})[0]; !muster.IsKind(err, muster.FaultTransient) {
		t.Error(err)
	}
	if list, err := p.List(t.Context(), ""); err != nil || len(list.Instances) != 1 {
		t.Errorf("%+v, %v", list, err)
	}
}

// A destroy whose caller has left has given nothing back.
func TestDestroyBrokenOff(t *testing.T) {
	r, p := open(t, 1)
	a := create(t, p, "a")
	r.lab.wait = make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- p.Destroy(ctx, []muster.InstanceID{a.ID})[0] }()
	cancel()
	if err := <-done; !muster.IsKind(err, muster.FaultTransient) {
		t.Error(err)
	}
	if list, _ := p.List(t.Context(), ""); len(list.Instances) != 1 {
		t.Errorf("%+v", list)
	}
	close(r.lab.wait)
}

// Two fleets with one set of records see and give out each only its own.
func TestTwoFleetsSeeOnlyTheirOwnHosts(t *testing.T) {
	r, p := open(t, 2)
	mine := create(t, p, "a")
	other := r.Open(t, "c2").(*Provider)
	theirs := create(t, other, "a")
	if list, err := other.List(t.Context(), ""); err != nil || len(list.Instances) != 1 || list.Instances[0].ID != theirs.ID {
		t.Errorf("%+v, %v", list, err)
	}
	if err := other.Destroy(t.Context(), []muster.InstanceID{mine.ID})[0]; !muster.IsKind(err, muster.FaultNotFound) {
		t.Error(err)
	}
	if _, err := other.Access(t.Context(), mine.ID); !muster.IsKind(err, muster.FaultNotFound) {
		t.Error(err)
	}
}

// A host was taken, and the answer lost with the server: the token finds it again.
func TestTokenFindsTheHostOfALostAnswer(t *testing.T) {
	r, p := open(t, 2)
	was := create(t, p, "a")
	if now := create(t, r.Open(t, "c1").(*Provider), "a"); now != was {
		t.Errorf("%+v, then %+v", was, now)
	}
}

// A host that is not told what it has is measured, once; some is left to itself. One that was never reached is not offered.
func TestHostsThatAreMeasured(t *testing.T) {
	r := &room{book: newBook(), lab: &lab{}}
	c := r.config("c1")
	c.List = []Host{{Name: "big", Access: cloud.Access{Address: "a0"}, Price: 7, Zone: "attic", Attributes: map[string]string{"gpu": "no"}}, {Name: "dead", Access: cloud.Access{Address: "a1"}}}
	r.lab.set("a1", muster.Faultf(muster.FaultUnavailable, "no route"))
	p, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	offers, err := p.Offers(t.Context())
	if err != nil || len(offers) != 1 {
		t.Fatalf("%+v, %v", offers, err)
	}
	o := offers[0]
	if o.Name != "big" || o.Limit != 1 || o.Price != 7 || o.Zone != "attic" || o.Capacity.CPU != 8000 || o.Capacity.Memory >= 32*muster.GiB || o.Capacity.Disk != 95*muster.GiB || o.Attributes["arch"] != "amd64" || o.Attributes["gpu"] != "no" {
		t.Errorf("%+v", o)
	}
	// A server that starts while the host is down offers it still.
	r.lab.set("a0", muster.Faultf(muster.FaultUnavailable, "no route"))
	if p, err = New(c); err != nil {
		t.Fatal(err)
	}
	if offers, err := p.Offers(t.Context()); err != nil || len(offers) != 1 || offers[0].Capacity != o.Capacity {
		t.Errorf("%+v, %v", offers, err)
	}
}

// A host that is given back each time as soon as it is taken, as one that says that it is broken, is taken last, and left
// alone for a while when there is no other.
func TestHostsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &room{book: newBook(), lab: &lab{}, hosts: 3}
		p, err := New(r.config("o"))
		if err != nil {
			t.Fatal(err)
		}
		take := func(n int) cloud.Created {
			return p.Create(t.Context(), []cloud.Intent{{Token: muster.Token(fmt.Sprint("t", n)), Node: muster.NodeID(fmt.Sprint("n", n)), Pool: "p", Offering: "rack", Zone: "cellar"}})[0]
		}
		host := func(c cloud.Created) string {
			t.Helper()
			if c.Err != nil {
				t.Fatal(c.Err)
			}
			name, _, _ := strings.Cut(string(c.Instance.ID), "-")
			return name
		}
		back := func(c cloud.Created) {
			t.Helper()
			if err := p.Destroy(t.Context(), []muster.InstanceID{c.Instance.ID})[0]; err != nil {
				t.Fatal(err)
			}
		}
		var got []string
		for n := range 4 {
			time.Sleep(time.Second)
			c := take(n)
			got = append(got, host(c))
			back(c)
		}
		if want := "h0 h1 h2 h0"; strings.Join(got, " ") != want {
			t.Errorf("%q, want %s", got, want)
		}
		// The others are in use: only h1 is left.
		a, b := take(10), take(11)
		free := ""
		for n := 0; ; n++ {
			c := take(20 + n)
			if c.Err != nil {
				break
			}
			if free = host(c); free == host(a) || free == host(b) || n > shortTakes {
				t.Fatalf("%s again, with %s and %s in use", free, host(a), host(b))
			}
			back(c)
		}
		full := take(30).Err
		var f *muster.Fault
		if !errors.As(full, &f) || f.Kind != muster.FaultCapacity || f.After <= 0 || f.After > restAsk || !strings.Contains(full.Error(), "is not used for") {
			t.Fatalf("%v", full)
		}
		time.Sleep(restFor)
		c := take(40)
		if host(c) == "" {
			t.Fatal(c)
		}
		// One that was of use is not short-lived any more.
		time.Sleep(time.Minute)
		back(c)
		for n := range shortTakes - 1 {
			c := take(50 + n)
			host(c)
			back(c)
		}
		host(take(60))
	})
}
