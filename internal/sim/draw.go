package sim

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// Draw writes the scenario of a seed: what is submitted, what goes wrong, and
// when. It is text, so that one that fails can be kept, cut down and played again.
func Draw(seed uint64) string {
	d := &drawing{r: rand.New(rand.NewPCG(seed, 0x6472617721))}
	d.line("seed %d", seed)
	d.line("workers %d", 1+d.r.IntN(3))
	d.line("offering small cpu=2 price=0.01 family=f")
	d.line("offering large cpu=8 price=0.045 family=f")
	if d.one(3) {
		d.line("offering small cpu=2 price=0.003 family=f market=spot")
	}
	d.line("pool p max=%d launching=%d idle=%s boot=%s spare=%d ready=50s", 1+d.r.IntN(8), 1+d.r.IntN(8), d.between(5, 30), d.between(60, 120), d.r.IntN(3)/2)
	d.line("cloud delay=%dms jitter=900ms page=%d", d.r.IntN(2000), []int{0, 0, 1, 3}[d.r.IntN(4)])
	d.line("blobs delay=%dms", d.r.IntN(8001))
	if d.one(4) {
		d.line("probes slow=%s in=%d", d.between(1, 45), 1+d.r.IntN(3))
	}
	if d.one(2) {
		d.line("pass %s", d.between(5, 40))
	}
	d.kind()
	for _, f := range d.faults() {
		d.line("fault %s", f)
	}
	at := time.Duration(0)
	for range d.envs {
		d.line("at %s %s", at, d.environment())
		at += time.Duration(d.r.IntN(2000)) * time.Millisecond
	}
	for range 10 + d.r.IntN(30) {
		for _, a := range d.now() {
			d.line("at %s %s", at, a)
		}
		at += time.Duration(d.r.IntN(15_000)) * time.Millisecond
	}
	d.configurations(seed, at)
	return d.b.String()
}

// configurations are applied in one scenario of four. They are drawn by themselves: the rest of a seed stays what it was.
func (d *drawing) configurations(seed uint64, end time.Duration) {
	r := rand.New(rand.NewPCG(seed, 0x636f6e666967))
	if r.IntN(4) > 0 {
		return
	}
	for range 1 + r.IntN(6) {
		d.line("at %s config p max=%d", time.Duration(r.Int64N(int64(end)+1)).Truncate(time.Millisecond), 1+r.IntN(8))
	}
}

type drawing struct {
	r *rand.Rand
	b strings.Builder
	// killed is how many nodes were taken from their work: a member may lose five before it fails.
	killed int
	// envs is how many environments it has; stepping that the system's clock steps, limiting that a namespace has limits, and
	// holding that operators hold and stop machines.
	envs                        int
	stepping, limiting, holding bool
	claims                      int
}

// kind draws what a scenario is about besides jobs: one that had everything would come to little of each.
func (d *drawing) kind() {
	if d.one(2) {
		d.envs = 1 + d.r.IntN(4)
	}
	d.stepping, d.limiting, d.holding = d.one(4), d.one(4), d.one(4)
}

// environment applies one of a few environments, new or changed.
func (d *drawing) environment() string {
	words := ""
	switch d.r.IntN(6) {
	case 0:
		words = fmt.Sprintf(" ready=%s", d.between(0, 10))
	case 1:
		words = " ready=never giveup=10s"
	}
	least := d.r.IntN(4)
	return fmt.Sprintf("env e%d min=%d max=%d cpu=0.5 priority=%d quiet=%s%s", d.r.IntN(4), least, least+1+d.r.IntN(8), d.r.IntN(90), d.between(60, 600), words)
}

// claim begins some clients of an environment.
func (d *drawing) claim() string {
	d.claims++
	words := fmt.Sprintf(" wait=%s last=%s", d.between(0, 60), d.between(1, 60))
	if d.one(2) {
		words += fmt.Sprintf(" idle=%s", d.between(6, 30))
	}
	add := func(in int, format string, args ...any) {
		if d.one(in) {
			words += " " + fmt.Sprintf(format, args...)
		}
	}
	add(2, "use=%s", d.between(2, 12))
	add(3, "key")
	add(5, "gone")
	add(6, "leave=%s", d.between(0, 5))
	add(5, "extend=%s", d.between(5, 60))
	return fmt.Sprintf("claim e%d count=%d ttl=%s%s", d.r.IntN(4), 1+d.r.IntN(6), d.between(5, 120), words)
}

// now are the acts of one moment: one, mostly, and what belongs to it.
func (d *drawing) now() []string {
	switch {
	case d.envs > 0 && d.one(3):
		switch d.r.IntN(8) {
		case 0:
			return []string{d.environment()}
		case 1:
			return []string{fmt.Sprintf("unenv e%d", d.r.IntN(4))}
		case 2:
			return []string{"drain any"}
		default:
			return []string{d.claim()}
		}
	case d.stepping && d.one(5):
		return []string{"clock " + []string{"1h", "-1h", "8760h", "-8760h", "61s", "-61s"}[d.r.IntN(6)]}
	case d.limiting && d.one(4):
		// A large job that others pass, of a namespace that comes to its limit.
		switch d.r.IntN(4) {
		case 0:
			return []string{fmt.Sprintf("limit b allocs=%d", 1+d.r.IntN(4))}
		case 1:
			return []string{fmt.Sprintf("submit k%d@b count=1 cpu=%d priority=%d timeout=5m: sleep %dms", d.r.IntN(4), 2+6*d.r.IntN(2), 40+d.r.IntN(30), d.r.IntN(30_000))}
		case 2:
			return []string{fmt.Sprintf("submit k%d@b count=%d cpu=0.1 priority=%d timeout=5m: sleep %dms", 4+d.r.IntN(4), 1+d.r.IntN(4), 40+d.r.IntN(30), d.r.IntN(90_000))}
		}
		return []string{fmt.Sprintf("submit s%d count=%d cpu=0.5 priority=%d timeout=5m: sleep %dms", d.r.IntN(4), 4+d.r.IntN(12), 40+d.r.IntN(30), d.r.IntN(20_000))}
	case d.holding && d.one(5):
		return [][]string{{"hold any"}, {"hold all", fmt.Sprintf("halt any for=%s", d.between(5, 120))}, {"run all"}}[d.r.IntN(3)]
	case d.one(25):
		return []string{fmt.Sprintf("store for=%s", d.between(1, 60))}
	case d.one(25):
		return []string{fmt.Sprintf("full for=%s", d.between(1, 20))}
	case d.one(20):
		return []string{[]string{"reload", "reload", fmt.Sprintf("reload workers=%d", 1+d.r.IntN(3)), "reload paused"}[d.r.IntN(4)]}
	case d.one(25):
		return []string{fmt.Sprintf("probe any %s times=%d", []string{"hang", "unready", "broken"}[d.r.IntN(3)], 1+d.r.IntN(3))}
	}
	return []string{d.act()}
}

// mayKill is how many nodes may go while those who must succeed still do.
const mayKill = 4

func (d *drawing) line(format string, args ...any) { fmt.Fprintf(&d.b, format+"\n", args...) }

func (d *drawing) one(in int) bool { return d.r.IntN(in) == 0 }

func (d *drawing) between(low, high int) time.Duration {
	return time.Duration(low*1000+d.r.IntN((high-low)*1000)) * time.Millisecond
}

// faults are some of those that a cloud has, most of them seldom.
func (d *drawing) faults() []string {
	var out []string
	add := func(in int, format string, args ...any) {
		if d.one(in) {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	add(2, "create: fail 10%%")
	add(3, "create: lost 10%%")
	add(4, "create: double 10%%")
	add(4, "create: late 50%%")
	add(4, "create: slow %s 20%%", d.between(1, 20))
	add(4, "create: rate gap=%s tell", d.between(1, 3))
	add(4, "create: quota max=%d family=f", 1+d.r.IntN(4))
	add(4, "create: capacity type=small from=%s for=%s", d.between(0, 60), d.between(1, 120))
	add(2, "destroy: fail transient 10%%")
	add(4, "destroy: lost 10%%")
	add(4, "destroy: late 50%%")
	add(4, "destroy: slow %s 30%%", d.between(1, 60))
	add(2, "list: fail transient 10%%")
	add(3, "list: cut 7%%")
	add(4, "list: short 5%%")
	add(4, "list: empty 4%%")
	add(4, "list: twice 10%%")
	add(3, "list: stale %s 20%%", d.between(1, 9))
	add(4, "list: slow %s 10%%", d.between(1, 30))
	add(4, "offers: fail 20%%")
	add(6, "offers: empty 5%%")
	add(4, "offers: lack type=small %d%%", 10+d.r.IntN(40))
	add(8, "offers: lack type=large from=%s for=%s", d.between(10, 60), d.between(60, 900))
	add(5, "create: early %s 30%%", d.between(1, 40))
	add(3, "instance: boots after=0s..20s 50%%")
	add(4, "instance: noboot 2x 30%%")
	kills := func(in int, format string, args ...any) {
		if d.killed < mayKill && d.one(in) {
			d.killed++
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	kills(5, "instance: dies once 30%% after=1s..90s")
	kills(5, "instance: broken once 30%% after=1s..60s")
	kills(5, "instance: stuck once 30%%")
	kills(5, "instance: notice once after=5s..60s in=%s", d.between(10, 120))
	kills(5, "instance: agent-dies once 30%% after=1s..60s")
	return out
}

// act is one thing that happens.
func (d *drawing) act() string {
	switch d.r.IntN(16) {
	case 0, 1, 2, 3, 4:
		return d.submit()
	case 5:
		n := d.r.IntN(36)
		return fmt.Sprintf([]string{"stop j%d", "retry j%d", "retry j%d all"}[n/12], n%12)
	case 6, 7:
		return "kill any"
	case 8:
		return fmt.Sprintf("cut any for=%s", d.between(0, 50))
	case 9:
		return fmt.Sprintf("hang any for=%s", d.between(0, 40))
	case 10:
		return d.kill()
	case 11:
		return d.order()
	case 12:
		return "crash"
	case 13:
		return fmt.Sprintf("down for=%s", d.between(0, 90))
	default:
		return "leader"
	}
}

func (d *drawing) kill() string {
	if d.killed >= mayKill {
		return "leader"
	}
	d.killed++
	switch d.r.IntN(4) {
	case 0:
		return fmt.Sprintf("notice any in=%s", d.between(5, 120))
	case 1:
		return "destroy any"
	}
	return "vanish any"
}

// order is an operator's, whose hold is not for ever.
func (d *drawing) order() string {
	switch d.r.IntN(4) {
	case 0:
		return "drain any"
	case 1:
		return fmt.Sprintf("drain any within=%s", d.between(1, 60))
	}
	return fmt.Sprintf("sick any for=%s", d.between(1, 30))
}

func (d *drawing) submit() string {
	words, command := "", ""
	ms := func(most int) string { return fmt.Sprintf("%dms", d.r.IntN(most)) }
	switch d.r.IntN(9) {
	case 0:
		command = "exit 3"
	case 1:
		words, command = " attempts=3", "sleep 2s ; exit 1"
	case 2:
		words, command = " must", fmt.Sprintf("print hello ; flood %d", d.r.IntN(3<<20))
	case 3:
		// Little, over a time in which some of it is shipped.
		words, command = " must", fmt.Sprintf("print one ; sleep %s ; warn two ; sleep %s ; print three", ms(20_000), ms(20_000))
	case 4:
		// More than may be kept of it, again and again.
		words = " must limit=64KiB"
		command = fmt.Sprintf("flood %d ; sleep %s ; flood %d ; sleep 6s ; flood 70000", d.r.IntN(200_000), ms(20_000), d.r.IntN(200_000))
	case 5:
		words, command = " must outputs=a,b,c?", fmt.Sprintf("print x ; sleep %s ; make a small ; fill b %d", ms(15_000), d.r.IntN(1<<20))
	case 6:
		words, command = fmt.Sprintf(" must input=%d", 1+d.r.IntN(5000)), fmt.Sprintf("cat in ; sleep %s", ms(10_000))
	default:
		words, command = " must", "sleep "+ms(90_000)
	}
	if d.one(6) {
		words += " replace"
	}
	return fmt.Sprintf("submit j%d count=%d cpu=%d priority=%d timeout=5m%s: %s", d.r.IntN(12), 1+d.r.IntN(12), 1+d.r.IntN(3), d.r.IntN(100), words, command)
}
