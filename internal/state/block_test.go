package state

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
)

func blocksOf(s *Snapshot) (out []Block) {
	ProvidersOf(s).Blocks(func(b *Block) bool { out = append(out, *b); return true })
	return out
}

// Blocks end by their key, are dropped by the log's time, and survive a snapshot.
func TestBlocksAreKeptAndDropped(t *testing.T) {
	l := newLog(t)
	l.must(&FormatRaised{Format: FormatNewest})
	at := func(d time.Duration) muster.Time { return muster.Time(l.now).Add(d) }
	block := func(call, zone string, kind muster.FaultKind, d time.Duration) Block {
		return Block{Call: call, Scope: muster.Scope{Provider: "p", Zone: zone}, Kind: kind, Until: at(d), Forget: at(d + time.Minute), Times: 1, Why: "no room"}
	}
	l.must(&BlocksChanged{Set: []Block{
		block(CallCreate, "a", muster.FaultCapacity, time.Minute), block(CallCreate, "a", muster.FaultQuota, time.Hour),
		block(CallCreate, "b", muster.FaultCapacity, time.Hour), block(CallList, "", muster.FaultRateLimited, time.Hour),
	}})
	if got := blocksOf(l.s.Latest()); len(got) != 4 {
		t.Fatalf("%d blocks: %+v", len(got), got)
	}
	again := block(CallCreate, "a", muster.FaultCapacity, 2*time.Minute)
	again.Times, again.Why = 2, strings.Repeat("x", 5000)
	l.must(&BlocksChanged{Set: []Block{again}, Ended: []Block{{Call: CallCreate, Scope: muster.Scope{Provider: "p", Zone: "b"}, Kind: muster.FaultCapacity}}})
	got := blocksOf(l.s.Latest())
	if len(got) != 3 || got[0].Times != 2 || len(got[0].Why) != maxBlockWhy {
		t.Fatalf("after a change: %+v", got)
	}
	restored, _ := New(16)
	if err := restored.Restore(bytes.NewReader(image(t, l.s))); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(blocksOf(restored.Latest())) != fmt.Sprint(got) {
		t.Errorf("restored %+v, was %+v", blocksOf(restored.Latest()), got)
	}
	// Any fact about blocks drops those whose time is over.
	l.sleep(10 * time.Minute)
	l.must(&BlocksChanged{})
	if got := blocksOf(l.s.Latest()); len(got) != 2 {
		t.Errorf("ten minutes later: %+v", got)
	}
}

// Whatever providers answer, the rows stay few; those go first that end first.
func TestBlocksAreBounded(t *testing.T) {
	l := newLog(t)
	l.must(&FormatRaised{Format: FormatNewest})
	f := &BlocksChanged{}
	for i := range MaxBlocks + 10 {
		f.Set = append(f.Set, Block{Call: CallCreate, Scope: muster.Scope{Provider: "p", Offering: muster.OfferingName(fmt.Sprintf("o%05d", i))}, Kind: muster.FaultCapacity, Forget: muster.Time(l.now).Add(time.Hour + time.Duration(i)*time.Second)})
	}
	l.must(f)
	got := blocksOf(l.s.Latest())
	if len(got) != MaxBlocks || got[0].Scope.Offering != "o00010" {
		t.Errorf("%d blocks, the first %+v", len(got), got[0])
	}
}

// A shelter ends by a fact, or by itself.
func TestShelterEnds(t *testing.T) {
	l := newLog(t)
	l.must(&FormatRaised{Format: FormatNewest})
	is := func(token muster.Token) bool {
		return ProvidersOf(l.s.Latest()).IsSheltered(token, muster.Time(l.now))
	}
	until := muster.Time(l.now).Add(time.Minute)
	l.must(&InstanceSheltered{Token: "a", Until: until})
	l.must(&InstanceSheltered{Token: "b", Until: until})
	l.must(&InstanceSheltered{Token: "a"})
	if is("a") || !is("b") || is("c") {
		t.Errorf("a %v, b %v, c %v", is("a"), is("b"), is("c"))
	}
	l.sleep(time.Minute)
	if is("b") {
		t.Error("b is sheltered beyond its time")
	}
	for i := range MaxShelters {
		l.must(&InstanceSheltered{Token: muster.Token(fmt.Sprint(i)), Until: muster.Time(l.now).Add(time.Hour)})
	}
	if _, err := l.do(&InstanceSheltered{Token: "more", Until: muster.Time(l.now).Add(time.Hour)}); !muster.IsKind(err, muster.FaultQuota) {
		t.Errorf("one more: %v", err)
	}
	if _, err := l.do(&InstanceSheltered{Until: muster.Time(l.now).Add(time.Hour)}); err == nil {
		t.Error("an instance without a token is sheltered")
	}
}
