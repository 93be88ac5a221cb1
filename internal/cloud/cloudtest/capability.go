package cloudtest

import (
	"encoding/base64"
	"slices"
	"strings"
	"sync"

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
	i := s.create(s.p, s.intent())
	ids := []muster.InstanceID{i.ID, "i-none"}
	for _, do := range []func([]muster.InstanceID) []error{
		func(ids []muster.InstanceID) []error { return p.Resume(s.Context(), ids) }, // awake already
		func(ids []muster.InstanceID) []error { return p.Suspend(s.Context(), ids) },
		func(ids []muster.InstanceID) []error { return p.Suspend(s.Context(), ids) },
		func(ids []muster.InstanceID) []error { return p.Resume(s.Context(), ids) },
		func(ids []muster.InstanceID) []error { return p.Suspend(s.Context(), ids) },
	} {
		if errs := do(ids); len(errs) != 2 || errs[0] != nil || muster.KindOf(errs[1]) != muster.FaultNotFound {
			s.Errorf("%v", errs)
		}
		if _, ok := s.list(s.p)[i.ID]; !ok {
			s.Error("it is not listed")
		}
	}
	if errs := s.p.Destroy(s.Context(), []muster.InstanceID{i.ID}); errs[0] != nil {
		s.Errorf("destroy of what sleeps: %v", errs[0])
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
