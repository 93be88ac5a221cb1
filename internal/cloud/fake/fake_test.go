package fake_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/cloudtest"
	"github.com/musterhq/muster/internal/cloud/fake"
)

type account struct {
	c    *fake.Cloud
	wrap func(p cloud.Provider, owner string) cloud.Provider
}

func (a account) Open(_ *testing.T, owner string) cloud.Provider {
	return a.wrap(a.c.Owner(owner), owner)
}

func bare(p cloud.Provider, _ string) cloud.Provider { return p }

// wrapped has every wrapper around it: a driver's promises must come through them.
func wrapped(p cloud.Provider, owner string) cloud.Provider {
	p = cloud.NewOwned(p, owner)
	p = cloud.NewLabelled(p, map[string]string{"cost": "centre-7"})
	p = cloud.NewLimited(p, cloud.Rates{Create: cloud.Rate{PerSecond: 2000, Burst: 2}, Destroy: cloud.Rate{PerSecond: 2000}, Read: cloud.Rate{PerSecond: 5000, Burst: 10}})
	return cloud.NewCounted(p)
}

func offering(name string) muster.Offering {
	return muster.Offering{Provider: "fake", Name: muster.OfferingName(name), Market: muster.OnDemand, Price: 1e5,
		Capacity: muster.Resources{CPU: 2000, Memory: muster.GiB}, Available: true, Family: name[:1]}
}

func TestConformance(t *testing.T) {
	for _, c := range []struct {
		name   string
		cfg    fake.Config
		script string
		wrap   func(cloud.Provider, string) cloud.Provider
	}{
		{"instant", fake.Config{}, "", bare},
		{"slow, in pages", fake.Config{Seed: 7, Delay: time.Millisecond, Jitter: 5 * time.Millisecond, Page: 2}, "", bare},
		{"in every wrapper", fake.Config{Seed: 7, Page: 2}, "", wrapped},
		{"destroys that take long, and a quota", fake.Config{Seed: 3}, "destroy: slow 40ms\ncreate: quota max=100", bare},
	} {
		t.Run(c.name, func(t *testing.T) {
			cloudtest.Run(t, 10*time.Second, func(*testing.T) cloudtest.Cloud {
				cfg := c.cfg
				cfg.Offerings = []muster.Offering{offering("small")}
				f := fake.New(cfg)
				if err := f.Play(c.script); err != nil {
					t.Fatal(err)
				}
				return account{f, c.wrap}
			})
		})
	}
}

func TestScriptsThatAreNotUnderstood(t *testing.T) {
	for script, want := range map[string]string{
		"create fail":                       `line 1, "create fail": it begins with none of`,
		"\n# nothing\nbirth: fail":          `line 3`,
		"create:":                           "does not say what",
		"create: explode":                   `create knows no "explode"`,
		"list: stale":                       "needs a duration",
		"list: stale soon":                  "invalid duration",
		"create: fail 110%":                 "not a number from 1 to 100",
		"create: capacity colour=blue":      `"colour=blue" is not understood`,
		"create: fail sometimes":            `"sometimes" is not understood`,
		"create: quota":                     "needs max=",
		"create: rate tell":                 "needs gap=",
		"instance: notice after=1s":         "needs in=",
		"instance: dies n%7=7":              "not a number from 0 to 6",
		"instance: dies after=1s..tomorrow": "invalid duration",
	} {
		err := fake.New(fake.Config{}).Play(script)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", script, err, want)
		}
	}
}

// bubble is a cloud with a script, in a bubble, and a log of what is asked of it.
type bubble struct {
	t     *testing.T
	c     *fake.Cloud
	p     cloud.Provider
	began time.Time
	n     int

	mu  sync.Mutex
	log strings.Builder
}

func inBubble(t *testing.T, cfg fake.Config, script string, fn func(b *bubble)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cfg.Offerings = []muster.Offering{offering("c4"), offering("c8"), offering("m4")}
		b := &bubble{t: t, began: time.Now()}
		cfg.Destroyed = func(in cloud.Instance) { b.note("%s ends", in.ID) }
		b.c = fake.New(cfg)
		if err := b.c.Play(script); err != nil {
			t.Fatal(err)
		}
		b.p = b.c.Owner("o")
		fn(b)
	})
}

func (b *bubble) note(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	fmt.Fprintf(&b.log, "%6s  %s\n", time.Since(b.began), fmt.Sprintf(format, args...))
}

// told is all that was noted, once nothing is under way any more.
func (b *bubble) told() string {
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.log.String()
}

func (b *bubble) create(offering string) {
	b.n++
	token := muster.Token(fmt.Sprintf("t%d", b.n))
	got := b.p.Create(context.Background(), []cloud.Intent{{Token: token, Node: muster.NodeID(token), Pool: "p", Offering: muster.OfferingName(offering)}})[0]
	if got.Err != nil {
		b.note("create %s: %s", offering, told(got.Err))
		return
	}
	b.note("create %s: %s", offering, got.Instance.ID)
}

// told is an error with all that policy reads.
func told(err error) string {
	if err == nil {
		return "done"
	}
	out := fmt.Sprintf("%s: %v", muster.KindOf(err), err)
	if f, ok := err.(*muster.Fault); ok && f.After > 0 {
		out += fmt.Sprintf(" (again in %s)", f.After)
	}
	return out
}

func (b *bubble) destroy(id string) {
	b.note("destroy %s: %s", id, told(b.p.Destroy(context.Background(), []muster.InstanceID{muster.InstanceID(id)})[0]))
}

func (b *bubble) list() {
	page, err := b.p.List(context.Background(), "")
	if err != nil {
		b.note("list: %s", told(err))
		return
	}
	var ids []string
	for _, in := range page.Instances {
		ids = append(ids, string(in.ID)[4:])
	}
	b.note("list: %s complete=%v", strings.Join(ids, " "), page.Complete)
}

func TestScripts(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name, script string
		do           func(b *bubble)
		want         string
	}{
		{"capacity of one type, for a time", "create: capacity type=c4 for=300ms", func(b *bubble) {
			b.create("c4")
			b.create("c8")
			time.Sleep(300 * ms)
			b.create("c4")
		}, `
			0s  create c4: capacity: offering c4: there is none to be had now
			0s  create c8: i-0001
			300ms  create c4: i-0002`},
		{"quota of a family, and a pace", "create: quota max=1 family=c\ncreate: rate gap=10ms tell", func(b *bubble) {
			b.create("c4")
			time.Sleep(4 * ms)
			b.create("c8")
			time.Sleep(6 * ms)
			b.create("c8")
			time.Sleep(10 * ms)
			b.create("m4")
			b.destroy("i-0001")
			time.Sleep(10 * ms)
			b.create("c8")
		}, `
			0s  create c4: i-0001
			4ms  create c8: rate-limited: create: one every 10ms at most (again in 6ms)
			10ms  create c8: quota: quota family c: the account may have 1, and has 1
			20ms  create m4: i-0002
			20ms  i-0001 ends
			20ms  destroy i-0001: done
			30ms  create c8: i-0003`},
		{"answers that are lost, and double ones", "create: lost once\ncreate: double once type=m4\ndestroy: lost once", func(b *bubble) {
			b.create("c4")
			b.create("m4")
			b.destroy("i-0001")
			b.destroy("i-0001")
			b.list()
		}, `
			0s  create c4: ambiguous: create: the answer was lost
			0s  create m4: i-0002
			0s  i-0001 ends
			0s  destroy i-0001: ambiguous: destroy: the answer was lost
			0s  destroy i-0001: done
			0s  list: 02 03 complete=true`},
		{"lists", "list: fail transient once\nlist: empty once from=1ms\nlist: short once from=2ms\nlist: cut once from=3ms\nlist: stale 1ms once from=10ms", func(b *bubble) {
			b.create("c4")
			b.create("c4")
			for range 5 {
				b.list()
				time.Sleep(ms)
			}
			time.Sleep(10 * ms)
			b.destroy("i-0001")
			b.list()
			b.list()
		}, `
			0s  create c4: i-0001
			0s  create c4: i-0002
			0s  list: transient: list: something went wrong
			1ms  list:  complete=true
			2ms  list: 01 complete=true
			3ms  list: 01 complete=false
			4ms  list: 01 02 complete=true
			15ms  i-0001 ends
			15ms  destroy i-0001: done
			15ms  list: 01 02 complete=true
			15ms  list: 02 complete=true`},
		{"slow destroys", "destroy: slow 1m", func(b *bubble) {
			b.create("c4")
			b.destroy("i-0001")
			b.list()
			time.Sleep(time.Minute)
			synctest.Wait()
			b.list()
		}, `
			0s  create c4: i-0001
			0s  destroy i-0001: done
			0s  list: 01 complete=true
			1m0s  i-0001 ends
			1m0s  list:  complete=true`},
		{"instances that die, and are taken", "instance: dies after=2s n%2=1\ninstance: notice after=1s in=2m n%2=0", func(b *bubble) {
			b.create("c4")
			b.create("c4")
			time.Sleep(90 * time.Second)
			n, err := b.p.(cloud.NoticeReader).Notices(context.Background())
			if err != nil || len(n) != 1 {
				b.t.Errorf("notices: %v, %v", n, err)
			}
			b.note("%s at %s", n[0].Instance, n[0].At.Std().Sub(b.began))
			time.Sleep(2 * time.Minute)
		}, `
			0s  create c4: i-0001
			0s  create c4: i-0002
			2s  i-0001 ends
			1m30s  i-0002 at 2m1s
			2m1s  i-0002 ends`},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, fake.Config{Seed: 1}, c.script, func(b *bubble) {
				c.do(b)
				if got, want := words(b.told()), words(c.want); got != want {
					t.Errorf("got\n%s\nwant\n%s", got, want)
				}
			})
		})
	}
}

// words is a text without its indents.
func words(s string) string {
	var out []string
	for _, line := range strings.Split(strings.TrimSpace(s), "\n") {
		out = append(out, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(out, "\n")
}

func TestFates(t *testing.T) {
	inBubble(t, fake.Config{Seed: 5}, "instance: noboot n%5=1\ninstance: wrong-key n%5=2\ninstance: broken after=1s..3s n%5=3\ninstance: agent-dies n%5=4\ninstance: stuck n%5=0", func(b *bubble) {
		for range 5 {
			b.create("c4")
		}
		fate := func(n int) fake.Fate { return b.c.Fate(muster.InstanceID(fmt.Sprintf("i-%04d", n))) }
		if !fate(1).NoBoot || !fate(2).WrongKey || fate(3).Broken < time.Second || fate(3).Broken >= 3*time.Second || fate(4).AgentDies != 0 || !fate(5).Stuck {
			t.Errorf("%+v %+v %+v %+v %+v", fate(1), fate(2), fate(3), fate(4), fate(5))
		}
		if fate(1).Stuck || fate(1).Broken >= 0 || fate(1).AgentDies >= 0 {
			t.Errorf("%+v", fate(1))
		}
		keys := func(n int) (shows, said string) {
			id := muster.InstanceID(fmt.Sprintf("i-%04d", n))
			lines, err := b.p.(cloud.HostKeyReader).HostKeys(context.Background(), id)
			if err != nil {
				t.Fatal(err)
			}
			return fake.KeyLine(b.c.HostKey(id)), lines[0]
		}
		if shows, said := keys(1); shows != said {
			t.Errorf("instance 1 shows %s, the cloud says %s", shows, said)
		}
		if shows, said := keys(2); shows == said {
			t.Error("a wrong key is the right one")
		}
	})
}

// The same seed has the same story, and a line that is added changes nothing for the others.
func TestSeeds(t *testing.T) {
	story := func(seed uint64, script string) string {
		out := ""
		inBubble(t, fake.Config{Seed: seed, Jitter: 300 * time.Millisecond}, script, func(b *bubble) {
			for range 40 {
				b.create("c4")
				b.list()
			}
			out = b.told()
		})
		return out
	}
	const script = "create: fail 20%\nlist: cut 10%"
	first := story(1, script)
	for range 19 {
		if again := story(1, script); again != first {
			t.Fatalf("one seed, two stories:\n%s\n%s", first, again)
		}
	}
	if first == story(2, script) {
		t.Error("two seeds, one story")
	}
	if first != story(1, script+"\ndestroy: fail 50%\ncreate: capacity 50% type=m4") {
		t.Error("a line that never strikes changes the story")
	}
}
