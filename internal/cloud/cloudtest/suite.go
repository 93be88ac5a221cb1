// Package cloudtest is the conformance suite of cloud.Provider: what every
// driver promises, real or fake. It makes a few instances and destroys all of
// them.
//
// It must never assume more than the interface says: a list may lag, a destroy may take its
// time. The tests of each driver call Run.
package cloudtest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
)

// Cloud is one cloud, in which several owners have accounts or share one.
type Cloud interface {
	// Open is a driver for one owner. Two for one owner stand for a server and the one that replaces it.
	Open(t *testing.T, owner string) cloud.Provider
}

// Run tests a driver. fresh makes a cloud without instances for each subtest.
func Run(t *testing.T, patience time.Duration, fresh func(t *testing.T) Cloud) {
	for _, c := range []struct {
		name string
		test func(*suite)
	}{
		{"Offers", offers},
		{"CreateIsListedWithItsTags", createIsListed},
		{"OneTokenIsOneInstance", oneToken},
		{"OneTokenAtTheSameTime", oneTokenAtOnce},
		{"OneTokenFromTwoServers", oneTokenTwoServers},
		{"ResultsAreInOrder", resultsInOrder},
		{"DestroyIsGone", destroyIsGone},
		{"DestroyOfNothing", destroyOfNothing},
		{"OwnersAreApart", ownersApart},
		{"CancelledCallsAnswer", cancelled},
		{"TagsChange", tagsChange},
		{"AgentsAnswer", agentsAnswer},
		{"SuspendAndResume", suspendAndResume},
		{"StopAndStart", stopAndStart},
		{"UserData", userData},
		{"ListsLagNoMoreThanSaid", consistency},
		{"Leftovers", leftovers},
		{"Resolves", resolves},
		{"Quotas", quotas},
		{"Notices", notices},
		{"HostKeys", hostKeys},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &suite{T: t, cloud: fresh(t), patience: patience}
			s.p = s.open("owner-a")
			c.test(s)
		})
	}
}

type suite struct {
	*testing.T
	cloud    Cloud
	patience time.Duration
	p        cloud.Provider
}

// open is a driver whose instances are destroyed after the test.
func (s *suite) open(owner string) cloud.Provider {
	s.Helper()
	p := s.cloud.Open(s.T, owner)
	s.Cleanup(func() {
		// Until none is left: a list may lag behind a create.
		deadline := time.Now().Add(s.patience)
		for clean := 0; clean < 2; {
			list := s.listWith(context.Background(), p)
			if len(list) == 0 {
				clean++
				continue
			}
			clean = 0
			for id := range list {
				if errs := p.Destroy(context.Background(), []muster.InstanceID{id}); errs[0] != nil {
					s.Logf("clean up %s: %v", id, errs[0])
				}
			}
			if time.Now().After(deadline) {
				s.Errorf("instances are left: %v", list)
				return
			}
		}
	})
	return p
}

var tokens atomic.Int64

// intent is a new one for the first offering that is available.
func (s *suite) intent() cloud.Intent {
	s.Helper()
	offers, err := s.p.Offers(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	for _, o := range offers {
		if o.Available {
			n := tokens.Add(1)
			return cloud.Intent{Token: muster.Token(fmt.Sprintf("token-%d", n)), Node: muster.NodeID(fmt.Sprintf("node-%d", n)),
				Pool: "pool-1", Offering: o.Name, Zone: o.Zone, Market: o.Market}
		}
	}
	s.Fatal("no offering is available")
	return cloud.Intent{}
}

// create makes one instance.
func (s *suite) create(p cloud.Provider, in cloud.Intent) cloud.Instance {
	s.Helper()
	got := p.Create(s.Context(), []cloud.Intent{in})
	if len(got) != 1 {
		s.Fatalf("%d results for one intent", len(got))
	}
	if got[0].Err != nil {
		s.Fatal(got[0].Err)
	}
	return got[0].Instance
}

func (s *suite) list(p cloud.Provider) map[muster.InstanceID]cloud.Instance {
	s.Helper()
	return s.listWith(s.Context(), p)
}

// listWith reads all pages of a complete list.
func (s *suite) listWith(ctx context.Context, p cloud.Provider) map[muster.InstanceID]cloud.Instance {
	s.Helper()
	all := map[muster.InstanceID]cloud.Instance{}
	for cursor := ""; ; {
		page, err := p.List(ctx, cursor)
		if err != nil {
			s.Fatal(err)
		}
		for _, i := range page.Instances {
			if _, twice := all[i.ID]; twice {
				s.Errorf("%s is listed twice", i.ID)
			}
			all[i.ID] = i
		}
		if page.Next == "" {
			if !page.Complete {
				s.Error("the last page of a list without faults is not complete")
			}
			return all
		}
		if page.Complete {
			s.Error("a page with a next one says that it is complete")
		}
		cursor = page.Next
	}
}

// eventually waits for a condition within the patience.
func (s *suite) eventually(what string, ok func() bool) {
	s.Helper()
	deadline := time.Now().Add(s.patience)
	for wait := time.Millisecond; !ok(); wait = min(2*wait, 200*time.Millisecond) {
		if time.Now().After(deadline) {
			s.Fatalf("not in time: %s", what)
		}
		time.Sleep(wait)
	}
}

func offers(s *suite) {
	list, err := s.p.Offers(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	if len(list) == 0 {
		s.Fatal("nothing is offered")
	}
	for _, o := range list {
		if o.Name == "" || o.Provider == "" || (o.Market != muster.OnDemand && o.Market != muster.Spot) || o.Capacity.CPU <= 0 || o.Capacity.Memory <= 0 || o.Price < 0 {
			s.Errorf("%+v", o)
		}
	}
	bad := s.intent()
	bad.Offering = "no-such-offering"
	got := s.p.Create(s.Context(), []cloud.Intent{bad})
	if len(got) != 1 || muster.KindOf(got[0].Err) != muster.FaultInvalid || !strings.Contains(got[0].Err.Error(), "no-such-offering") {
		s.Errorf("create of what is not offered: %+v", got)
	}
	if n := len(s.list(s.p)); n != 0 {
		s.Errorf("%d instances", n)
	}
}

func createIsListed(s *suite) {
	in := s.intent()
	i := s.create(s.p, in)
	want := cloud.Tags{Owner: "owner-a", Token: in.Token, Node: in.Node, Pool: in.Pool}
	if i.ID == "" || i.Tags != want || i.Offering != in.Offering || i.Zone != in.Zone || i.Market != in.Market {
		s.Errorf("%+v", i)
	}
	s.eventually("it is listed", func() bool {
		listed, ok := s.list(s.p)[i.ID]
		if ok && (listed.Tags != want || listed.Offering != i.Offering || listed.Zone != i.Zone || listed.Market != i.Market || listed.Created != i.Created) {
			s.Errorf("listed as %+v, created as %+v", listed, i)
		}
		return ok
	})
}

func oneToken(s *suite) {
	in := s.intent()
	first := s.create(s.p, in)
	if second := s.create(s.p, in); second.ID != first.ID || second.Tags != first.Tags {
		s.Errorf("%+v, then %+v", first, second)
	}
	s.only(first.ID)
}

// only checks that there is one instance, also after a while.
func (s *suite) only(id muster.InstanceID) {
	s.Helper()
	s.eventually("it is listed", func() bool {
		_, ok := s.list(s.p)[id]
		return ok
	})
	if list := s.list(s.p); len(list) != 1 {
		s.Errorf("%v", list)
	}
}

func oneTokenAtOnce(s *suite) {
	in := s.intent()
	s.sameFrom(in, s.p, s.p, s.p, s.p)
	// And within one call.
	got := s.p.Create(s.Context(), []cloud.Intent{in, in})
	if got[0].Err != nil || got[1].Err != nil || got[0].Instance.ID != got[1].Instance.ID {
		s.Errorf("%+v", got)
	}
}

func oneTokenTwoServers(s *suite) {
	s.sameFrom(s.intent(), s.p, s.cloud.Open(s.T, "owner-a"))
}

// sameFrom creates one intent through several drivers at once.
func (s *suite) sameFrom(in cloud.Intent, from ...cloud.Provider) {
	s.Helper()
	got := make([]cloud.Created, len(from))
	var wg sync.WaitGroup
	for n, p := range from {
		wg.Go(func() { got[n] = p.Create(s.Context(), []cloud.Intent{in})[0] })
	}
	wg.Wait()
	id := muster.InstanceID("")
	for _, g := range got {
		switch {
		case g.Err != nil:
			// Two at once may get in each other's way, but must say so as something to look into, not as final.
			if k := muster.KindOf(g.Err); k != muster.FaultTransient && k != muster.FaultAmbiguous {
				s.Errorf("%v", g.Err)
			}
		case id == "":
			id = g.Instance.ID
		case id != g.Instance.ID:
			s.Errorf("%s and %s for one token", id, g.Instance.ID)
		}
	}
	if id == "" {
		s.Fatal("none succeeded")
	}
	s.only(id)
}

func resultsInOrder(s *suite) {
	good, bad, other := s.intent(), s.intent(), s.intent()
	bad.Offering = "no-such-offering"
	got := s.p.Create(s.Context(), []cloud.Intent{good, bad, other})
	if len(got) != 3 || got[0].Err != nil || got[1].Err == nil || got[2].Err != nil {
		s.Fatalf("%+v", got)
	}
	if got[0].Instance.Tags.Token != good.Token || got[2].Instance.Tags.Token != other.Token || got[0].Instance.ID == got[2].Instance.ID {
		s.Errorf("%+v", got)
	}
	if none := s.p.Create(s.Context(), nil); len(none) != 0 {
		s.Errorf("%+v", none)
	}
	if errs := s.p.Destroy(s.Context(), []muster.InstanceID{got[0].Instance.ID, got[2].Instance.ID}); len(errs) != 2 || errs[0] != nil || errs[1] != nil {
		s.Errorf("%v", errs)
	}
}

func destroyIsGone(s *suite) {
	i := s.create(s.p, s.intent())
	stays := s.create(s.p, s.intent())
	for range 2 {
		if errs := s.p.Destroy(s.Context(), []muster.InstanceID{i.ID}); len(errs) != 1 || errs[0] != nil {
			s.Fatalf("%v", errs)
		}
	}
	s.eventually("it is not listed any more", func() bool {
		list := s.list(s.p)
		_, there := list[i.ID]
		_, other := list[stays.ID]
		return !there && other
	})
	// At the same time, from two sides.
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			if errs := s.p.Destroy(s.Context(), []muster.InstanceID{stays.ID, stays.ID}); errs[0] != nil || errs[1] != nil {
				s.Errorf("%v", errs)
			}
		})
	}
	wg.Wait()
	s.eventually("nothing is listed any more", func() bool { return len(s.list(s.p)) == 0 })
}

func destroyOfNothing(s *suite) {
	i := s.create(s.p, s.intent())
	gone := i.ID + "0"
	if errs := s.p.Destroy(s.Context(), []muster.InstanceID{gone, "../" + i.ID, ""}); len(errs) != 3 || errs[0] != nil || errs[1] != nil || errs[2] != nil {
		s.Errorf("what does not exist is destroyed already: %v", errs)
	}
	s.only(i.ID)
	if errs := s.p.Destroy(s.Context(), nil); len(errs) != 0 {
		s.Errorf("%v", errs)
	}
}

func ownersApart(s *suite) {
	in := s.intent()
	mine := s.create(s.p, in)
	other := s.open("owner-b")
	theirs := s.create(other, in) // tokens are an owner's own
	if theirs.ID == mine.ID || theirs.Tags.Owner != "owner-b" {
		s.Errorf("%+v and %+v", mine, theirs)
	}
	if errs := other.Destroy(s.Context(), []muster.InstanceID{mine.ID}); muster.KindOf(errs[0]) != muster.FaultNotFound {
		s.Errorf("destroy of another's: %v", errs[0])
	}
	s.only(mine.ID)
	if list := s.list(other); len(list) != 1 || list[theirs.ID].Tags.Owner != "owner-b" {
		s.Errorf("%v", list)
	}
	if d, ok := cloud.As[cloud.Dialer](other); ok {
		if conn, err := d.DialAgent(s.Context(), mine.ID); muster.KindOf(err) != muster.FaultNotFound {
			s.Errorf("connection to an instance of another owner: %v", err)
			if err == nil {
				_ = conn.Close()
			}
		}
	}
	if a, ok := cloud.As[cloud.AgentStarter](other); ok {
		if err := a.StartAgent(s.Context(), mine.ID); muster.KindOf(err) != muster.FaultNotFound {
			s.Errorf("start of another's agent: %v", err)
		}
	}
}

func cancelled(s *suite) {
	ctx, cancel := context.WithCancel(s.Context())
	cancel()
	in := s.intent()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, g := range s.p.Create(ctx, []cloud.Intent{in}) {
			if k := muster.KindOf(g.Err); g.Err != nil && k != muster.FaultTransient && k != muster.FaultAmbiguous {
				s.Errorf("create: %v", g.Err)
			}
		}
		_, _ = s.p.List(ctx, "")
		_ = s.p.Destroy(ctx, []muster.InstanceID{"i-none"})
	}()
	select {
	case <-done:
	case <-time.After(s.patience):
		s.Fatal("a call does not end with its context")
	}
	// Whatever came of it, the token still names one instance at most.
	s.only(s.create(s.p, in).ID)
}

// agentsAnswer tests the optional ways to an agent, where a driver has them.
func agentsAnswer(s *suite) {
	d, ok := cloud.As[cloud.Dialer](s.p)
	if !ok {
		s.Skip("not a Dialer")
	}
	if _, err := d.DialAgent(s.Context(), "i-none"); muster.KindOf(err) != muster.FaultNotFound {
		s.Errorf("connection to a missing instance: %v", err)
	}
	i := s.create(s.p, s.intent())
	s.eventually("its agent can be reached", func() bool {
		conn, err := d.DialAgent(s.Context(), i.ID)
		if err == nil {
			_ = conn.Close()
		} else if muster.KindOf(err) != muster.FaultUnavailable {
			s.Fatal(err)
		}
		return err == nil
	})
	a, ok := cloud.As[cloud.AgentStarter](s.p)
	if !ok {
		return
	}
	if err := a.StartAgent(s.Context(), i.ID); err != nil {
		s.Errorf("start of an agent that runs: %v", err)
	}
	if conn, err := d.DialAgent(s.Context(), i.ID); err != nil {
		s.Errorf("after that: %v", err)
	} else {
		_ = conn.Close()
	}
	if errs := s.p.Destroy(s.Context(), []muster.InstanceID{i.ID}); errs[0] != nil {
		s.Fatal(errs[0])
	}
	s.eventually("a destroyed instance has no agent", func() bool {
		conn, err := d.DialAgent(s.Context(), i.ID)
		if err == nil {
			_ = conn.Close()
		}
		return muster.KindOf(err) == muster.FaultNotFound && muster.KindOf(a.StartAgent(s.Context(), i.ID)) == muster.FaultNotFound
	})
}
