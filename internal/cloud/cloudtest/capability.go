package cloudtest

import (
	"context"
	"encoding/base64"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
)

func tagsChange(s *suite) {
	in := s.intent()
	i := s.create(s.p, in)
	other := s.create(s.p, s.intent())
	want := i.Tags
	want.Node, want.Pool, want.Intent = "another", "pool-2", muster.NodeHold
	for range 2 {
		if err := s.p.SetTags(s.Context(), i.ID, want); err != nil {
			s.Fatal(err)
		}
	}
	s.eventually("the new tags are listed", func() bool { return s.list(s.p)[i.ID].Tags == want })
	if now := s.list(s.p)[other.ID].Tags; now != other.Tags {
		s.Errorf("the tags of another instance are %+v", now)
	}
	// The token is its name still.
	if again := s.create(s.p, in); again.ID != i.ID {
		s.Errorf("%s, and after its tags have changed %s", i.ID, again.ID)
	}
	for _, edit := range []func(*cloud.Tags){func(t *cloud.Tags) { t.Owner = "owner-b" }, func(t *cloud.Tags) { t.Token = "t" }, func(t *cloud.Tags) { *t = cloud.Tags{} }} {
		bad := want
		edit(&bad)
		if err := s.p.SetTags(s.Context(), i.ID, bad); muster.KindOf(err) != muster.FaultInvalid {
			s.Errorf("tags %+v: %v", bad, err)
		}
	}
	for _, id := range []muster.InstanceID{i.ID + "0", "", "../" + i.ID} {
		if err := s.p.SetTags(s.Context(), id, want); muster.KindOf(err) != muster.FaultNotFound {
			s.Errorf("tags of what does not exist: %v", err)
		}
	}
	theirs := want
	theirs.Owner = "owner-b"
	if err := s.open("owner-b").SetTags(s.Context(), i.ID, theirs); muster.KindOf(err) != muster.FaultNotFound {
		s.Errorf("tags of another's: %v", err)
	}
	var wg sync.WaitGroup
	for _, node := range []muster.NodeID{"n1", "n2"} {
		wg.Go(func() {
			mine := want
			mine.Node = node
			if err := s.p.SetTags(s.Context(), i.ID, mine); err != nil {
				s.Errorf("two at once: %v", err)
			}
		})
	}
	wg.Wait()
	s.eventually("one of the two is listed, and whole", func() bool {
		t := s.list(s.p)[i.ID].Tags
		node := t.Node
		t.Node = want.Node
		return t == want && (node == "n1" || node == "n2")
	})
	if errs := s.p.Destroy(s.Context(), []muster.InstanceID{i.ID}); errs[0] != nil {
		s.Fatal(errs[0])
	}
	s.eventually("a destroyed instance takes no tags", func() bool {
		return muster.KindOf(s.p.SetTags(s.Context(), i.ID, want)) == muster.FaultNotFound
	})
}

func suspendAndResume(s *suite) {
	p, ok := cloud.As[cloud.Suspender](s.p)
	if !ok {
		s.Skip("not a Suspender")
	}
	s.offAndOn(p.Suspend, p.Resume)
}

func stopAndStart(s *suite) {
	p, ok := cloud.As[cloud.Stopper](s.p)
	if !ok {
		s.Skip("not a Stopper")
	}
	s.offAndOn(p.Stop, p.Start)
}

// offAndOn takes an instance out of service and back, and destroys it while it is off.
func (s *suite) offAndOn(off, on func(context.Context, []muster.InstanceID) []error) {
	s.Helper()
	i := s.create(s.p, s.intent())
	s.eventually("the instance is listed", func() bool { _, ok := s.list(s.p)[i.ID]; return ok })
	ids := []muster.InstanceID{i.ID, "i-none"}
	// The first is on already, and the third is off already.
	for _, do := range []func(context.Context, []muster.InstanceID) []error{on, off, off, on, off} {
		if errs := do(s.Context(), ids); len(errs) != 2 || errs[0] != nil || muster.KindOf(errs[1]) != muster.FaultNotFound {
			s.Errorf("%v", errs)
		}
		if _, ok := s.list(s.p)[i.ID]; !ok {
			s.Error("it is not listed")
		}
	}
	if errs := s.p.Destroy(s.Context(), []muster.InstanceID{i.ID}); errs[0] != nil {
		s.Errorf("destroy of what is off: %v", errs[0])
	}
}

// userData: what is too long is refused before anything is made, and what is not is no reason to
// make another instance for a token.
func userData(s *suite) {
	p, ok := cloud.As[cloud.Bootable](s.p)
	if !ok {
		s.Skip("not Bootable")
	}
	in := s.intent()
	in.Boot = cloud.Boot{UserData: muster.NewSecret("#!/bin/sh\n" + strings.Repeat("#", p.UserDataLimit()))}
	if got := s.p.Create(s.Context(), []cloud.Intent{in}); muster.KindOf(got[0].Err) != muster.FaultInvalid {
		s.Errorf("user data of more than %d bytes: %v", p.UserDataLimit(), got[0].Err)
	}
	if list := s.list(s.p); len(list) != 0 {
		s.Errorf("made all the same: %v", list)
	}
	in = s.intent()
	in.Boot = cloud.Boot{UserData: muster.NewSecret("#!/bin/sh\ntrue\n"), HostKey: "ssh-ed25519 AAAA"}
	i := s.create(s.p, in)
	if again := s.create(s.p, in); again.ID != i.ID {
		s.Errorf("%s, and for the same intent again %s", i.ID, again.ID)
	}
}

// consistency: an instance is listed once the lag that the driver names is over.
func consistency(s *suite) {
	c := cloud.ConsistencyOf(s.p)
	if c.ListLag < 0 || c.Agreement <= 0 || c.ListLag > time.Hour || c.Agreement > time.Hour {
		s.Fatalf("%+v", c)
	}
	i := s.create(s.p, s.intent())
	made := time.Now()
	s.eventually("the instance is listed", func() bool { _, ok := s.list(s.p)[i.ID]; return ok })
	if lag := time.Since(made); lag > c.ListLag+s.patience {
		s.Errorf("listed after %s, and the driver says %s at most", lag, c.ListLag)
	}
}

// leftovers: what belongs to a machine that is there is not one, another owner's is not shown, and
// removing what does not exist is no error.
func leftovers(s *suite) {
	p, ok := cloud.As[cloud.Sweeper](s.p)
	if !ok {
		s.Skip("not a Sweeper")
	}
	i := s.create(s.p, s.intent())
	list, err := p.Leftovers(s.Context())
	if err != nil || len(list) != 0 {
		s.Errorf("beside one instance that is there: %v, %v", list, err)
	}
	if errs := s.p.Destroy(s.Context(), []muster.InstanceID{i.ID}); errs[0] != nil {
		s.Fatal(errs[0])
	}
	other, _ := cloud.As[cloud.Sweeper](s.open("owner-b"))
	if list, err := other.Leftovers(s.Context()); err != nil || len(list) != 0 {
		s.Errorf("of another owner: %v, %v", list, err)
	}
	s.eventually("nothing is left", func() bool {
		list, err := p.Leftovers(s.Context())
		if err != nil {
			return false
		}
		for k, err := range p.Remove(s.Context(), list) {
			if err != nil {
				s.Logf("%s %s: %v", list[k].Kind, list[k].ID, err)
			}
		}
		return len(list) == 0
	})
	for _, err := range p.Remove(s.Context(), list) {
		if err != nil {
			s.Errorf("removed twice: %v", err)
		}
	}
}

func resolves(s *suite) {
	p, ok := cloud.As[cloud.Resolver](s.p)
	if !ok {
		s.Skip("not a Resolver")
	}
	list, err := p.Resolve(s.Context())
	if err != nil || len(list) == 0 {
		s.Fatalf("%v, %v", list, err)
	}
	for _, r := range list {
		if r.What == "" || r.Problem != "" {
			s.Errorf("%+v", r)
		}
	}
}

func quotas(s *suite) {
	p, ok := cloud.As[cloud.QuotaReader](s.p)
	if !ok {
		s.Skip("not a QuotaReader")
	}
	list, err := p.Quotas(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	var families []string
	for _, q := range list {
		if q.Limit < 0 || q.Used < 0 || slices.Contains(families, q.Family) {
			s.Errorf("%+v", q)
		}
		families = append(families, q.Family)
	}
}

func notices(s *suite) {
	p, ok := cloud.As[cloud.NoticeReader](s.p)
	if !ok {
		s.Skip("not a NoticeReader")
	}
	i := s.create(s.p, s.intent())
	list, err := p.Notices(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	for _, n := range list {
		if n.Instance != i.ID || n.At == 0 {
			s.Errorf("%+v", n)
		}
	}
}

func hostKeys(s *suite) {
	p, ok := cloud.As[cloud.HostKeyReader](s.p)
	if !ok {
		s.Skip("not a HostKeyReader")
	}
	i := s.create(s.p, s.intent())
	s.eventually("its host keys are known", func() bool {
		lines, err := p.HostKeys(s.Context(), i.ID)
		if muster.IsKind(err, muster.FaultUnavailable) {
			return false
		}
		if err != nil || len(lines) == 0 {
			s.Fatalf("%v, %v", lines, err)
		}
		for _, line := range lines {
			f := strings.Fields(line)
			if len(f) < 2 {
				s.Fatalf("%q is not a line of authorized_keys", line)
			}
			if key, err := base64.StdEncoding.DecodeString(f[1]); err != nil || !strings.Contains(string(key), f[0]) {
				s.Errorf("%q: not a key of type %s: %v", line, f[0], err)
			}
		}
		return true
	})
	for _, id := range []muster.InstanceID{"i-none", ""} {
		if lines, err := p.HostKeys(s.Context(), id); muster.KindOf(err) != muster.FaultNotFound {
			s.Errorf("keys of what does not exist: %v, %v", lines, err)
		}
	}
	if other, ok := cloud.As[cloud.HostKeyReader](s.open("owner-b")); ok {
		if lines, err := other.HostKeys(s.Context(), i.ID); muster.KindOf(err) != muster.FaultNotFound {
			s.Errorf("keys of another's: %v, %v", lines, err)
		}
	}
}
