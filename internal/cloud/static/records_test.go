package static

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
)

// book is Records in memory, as the log keeps them.
type book struct {
	mu    sync.Mutex
	hosts map[string]Record
	found map[string]Found
	// fails, if set, is what each change is told.
	fails error
	// before is called before a host is taken.
	before func(Record)
}

func newBook() *book { return &book{hosts: map[string]Record{}} }

func (b *book) Hosts() ([]Record, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.SortedFunc(maps.Values(b.hosts), func(x, y Record) int { return strings.Compare(x.Host, y.Host) }), nil
}

func (b *book) Take(_ context.Context, r Record) error {
	if before := b.before; before != nil {
		b.before = nil
		before(r)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fails != nil {
		return b.fails
	}
	for _, h := range b.hosts {
		if h.Host == r.Host && h.ID == r.ID {
			return nil
		}
		if h.Host == r.Host || h.Tags.Token == r.Tags.Token && h.Tags.Owner == r.Tags.Owner {
			return muster.Faultf(muster.FaultConflict, "host %s is in use, as instance %s", h.Host, h.ID)
		}
	}
	b.hosts[r.Host] = r
	return nil
}

func (b *book) Tag(_ context.Context, host string, id muster.InstanceID, tags cloud.Tags) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.hosts[host]
	if r.ID != id {
		return muster.Faultf(muster.FaultNotFound, "host %s is not instance %s any more", host, id)
	}
	r.Tags = tags
	b.hosts[host] = r
	return nil
}

func (b *book) Release(_ context.Context, host string, id muster.InstanceID, owed bool) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.hosts[host]
	switch {
	case r.ID != id:
	case owed:
		r.Owed = true
		b.hosts[host] = r
	default:
		delete(b.hosts, host)
	}
	return nil
}

func (b *book) Found() (map[string]Found, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.found), nil
}

func (b *book) SetFound(_ context.Context, all map[string]Found) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.found = maps.Clone(all)
	return b.fails
}

// writeOld writes a file as earlier versions did.
func writeOld(t *testing.T, dir, name string, v any) {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// Who has which host is read once from the files of an earlier version. Until the log has it, nothing
// is given out and no list calls itself complete.
func TestFilesOfAnEarlierVersionAreRead(t *testing.T) {
	r := &room{dir: t.TempDir(), book: newBook(), lab: &lab{}, hosts: 3}
	old := func(host, token string, owed bool) {
		writeOld(t, r.dir, "host-"+host+".json", Record{Access: cloud.Access{Address: "was-" + host, Dir: "/old"}, Owed: owed, Instance: cloud.Instance{
			ID: muster.InstanceID(host + "-" + token), Tags: cloud.Tags{Owner: "c1", Token: muster.Token(token), Node: muster.NodeID("n-" + token)}, Offering: "rack", Zone: "cellar", Market: muster.OnDemand, Created: 5,
		}})
	}
	old("h0", "a", false)
	old("h1", "b", true)
	writeOld(t, r.dir, "found.json", map[string]Found{"big": {Address: "a9", Capacity: muster.Resources{CPU: 1000, Memory: muster.GiB}, Arch: "amd64"}})
	r.lab.set("was-h1", muster.Faultf(muster.FaultUnavailable, "no route"))
	p := r.Open(t, "c1").(*Provider)

	r.book.fails = muster.Faultf(muster.FaultUnavailable, "the log takes nothing")
	if list, err := p.List(t.Context(), ""); err == nil {
		t.Errorf("without the log: %+v", list)
	}
	if got := p.Create(t.Context(), []cloud.Intent{intent("c")})[0]; got.Err == nil {
		t.Errorf("without the log: %+v", got.Instance)
	}
	r.book.fails = nil
	list, err := p.List(t.Context(), "")
	if err != nil || len(list.Instances) != 1 || list.Instances[0].ID != "h0-a" || list.Instances[0].Created != 5 {
		t.Fatalf("%+v, %v", list, err)
	}
	if way, err := p.Access(t.Context(), "h0-a"); err != nil || way.Address != "a0" || way.Dir != "/old" {
		t.Errorf("%+v, %v", way, err)
	}
	// The third host is the only free one.
	if in := create(t, p, "c"); !strings.HasPrefix(string(in.ID), "h2-") {
		t.Errorf("%s was given out", in.ID)
	}
	if f, _ := r.book.Found(); f["big"].Arch != "amd64" {
		t.Errorf("found: %+v", f)
	}
	p.Wait()
	// What is released now does not come back with the next start.
	if err := p.Destroy(t.Context(), []muster.InstanceID{"h0-a"})[0]; err != nil {
		t.Fatal(err)
	}
	again := r.Open(t, "c1").(*Provider)
	if list, err := again.List(t.Context(), ""); err != nil || len(list.Instances) != 1 {
		t.Errorf("after another start: %+v, %v", list, err)
	}
	left, _ := filepath.Glob(filepath.Join(r.dir, "*.json"))
	read, _ := filepath.Glob(filepath.Join(r.dir, "*.json.in-log"))
	if len(left) != 0 || len(read) != 3 {
		t.Errorf("files %q, read %q", left, read)
	}
}

// A file that cannot be read is not taken for a free host.
func TestDamagedFileOfAnEarlierVersion(t *testing.T) {
	r := &room{dir: t.TempDir(), book: newBook(), lab: &lab{}, hosts: 1}
	if err := os.WriteFile(filepath.Join(r.dir, "host-h0.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := r.Open(t, "c1").(*Provider)
	got := p.Create(t.Context(), []cloud.Intent{intent("a")})[0]
	if !muster.IsKind(got.Err, muster.FaultTransient) || !strings.Contains(got.Err.Error(), "host-h0.json") {
		t.Errorf("%+v", got)
	}
}

// Another leader, or another call, may have a host in the log first: then the next one is given out.
func TestHostIsTakenByAnother(t *testing.T) {
	r, p := open(t, 2)
	r.book.before = func(mine Record) {
		mine.ID, mine.Tags.Token = "h0-other", "other"
		if err := r.book.Take(context.Background(), mine); err != nil {
			t.Error(err)
		}
	}
	if in := create(t, p, "a"); !strings.HasPrefix(string(in.ID), "h1-") {
		t.Errorf("%s was given out", in.ID)
	}
}

// When the log does not say whether a host was taken, the answer is unclear, and the token finds it.
func TestTakeWithoutAnAnswer(t *testing.T) {
	r, p := open(t, 1)
	r.book.fails = &muster.Fault{Kind: muster.FaultAmbiguous, Err: errors.New("the leader has changed")}
	got := p.Create(t.Context(), []cloud.Intent{intent("a")})[0]
	if !muster.IsKind(got.Err, muster.FaultAmbiguous) {
		t.Fatalf("%+v", got)
	}
	r.book.fails = nil
	r.book.hosts["h0"] = Record{Host: "h0", Instance: cloud.Instance{ID: "h0-x", Created: muster.At(time.Now()), Tags: cloud.Tags{Owner: "c1", Token: "a", Node: "n-a"}}}
	if in := create(t, p, "a"); in.ID != "h0-x" {
		t.Errorf("%+v", in)
	}
}
