package sim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

// stockPatience is how long environments may take to have their minimum warm, or to say why not, once nothing goes wrong any more.
const stockPatience = time.Hour

// names are those that an act means: one, or so many copies.
func (p *Play) names(a *Act, o *options) []muster.JobKey {
	key := jobKey(a.word(0))
	n := o.number("copies", 0)
	if n == 0 {
		return []muster.JobKey{muster.EnvironmentKey(key.Namespace, key.Name)}
	}
	out := make([]muster.JobKey, n)
	for i := range out {
		out[i] = muster.EnvironmentKey(key.Namespace, fmt.Sprintf("%s-%d", key.Name, i))
	}
	return out
}

func (p *Play) environment(a *Act, o *options) error {
	least, priority := o.number("min", 1), o.number("priority", 50)
	resources := api.ResourcesSpec{CPU: o.real("cpu", 1), Memory: api.Size(o.size("memory", 1<<20))}
	warm := api.WarmSpec{Min: &least, Max: o.number("max", 0), Quiet: api.Duration(o.duration("quiet", 0))}
	if n := o.number("target", -1); n >= 0 {
		warm.Target = &n
	}
	command := []string{"hang"}
	if a.Command {
		command = strings.Fields(a.Rest)
	}
	var ready *api.ReadySpec
	if when := o.text("ready", ""); when != "" {
		ready = &api.ReadySpec{Command: []string{"ok"}, GiveUp: api.Duration(o.duration("giveup", 0))}
		if when != "never" {
			command = []string{"sleep", when, ";", "ready", ";", "hang"}
		}
	}
	for _, key := range p.names(a, o) {
		name, _ := key.Environment()
		spec := &api.EnvironmentSpec{Name: name, Namespace: string(key.Namespace), Warm: warm, Template: api.Template{Resources: resources, Command: slices.Clone(command), Priority: &priority, Ready: ready}}
		spec.Defaults()
		p.submitted++
		if err := overtaken(p.c.propose(&state.EnvironmentSet{Key: key, UID: muster.JobUID(fmt.Sprintf("e%sx%d", strings.ReplaceAll(name, "-", ""), p.submitted)), Spec: spec})); err != nil {
			return err
		}
	}
	return nil
}

func (p *Play) unset(a *Act, o *options) error {
	for _, key := range p.names(a, o) {
		err := p.c.propose(&state.EnvironmentDeleted{Key: key, Claimed: slices.Contains(a.Words, "claimed")})
		if err = overtaken(err); err != nil && !muster.IsKind(err, muster.FaultNotFound) {
			return err
		}
	}
	return nil
}

// claim begins clients.
func (p *Play) claim(a *Act, o *options) {
	count := o.number("count", 1)
	k := client{c: p.c, ttl: o.duration("ttl", time.Minute), idle: o.duration("idle", 0), wait: o.duration("wait", 0), leave: o.duration("leave", 0),
		use: o.duration("use", 0), last: o.duration("last", 20*time.Second), extend: o.duration("extend", 0),
		keyed: slices.Contains(a.Words, "key"), gone: slices.Contains(a.Words, "gone")}
	for _, key := range p.names(a, o) {
		for range count {
			one := k
			p.claimed++
			one.env, one.name = key, fmt.Sprintf("client %d", p.claimed)
			p.c.clients.wg.Go(one.run)
		}
	}
}

// full reports whether no node has room for another runner of an environment, and no pool may get another node: that it waits
// needs no other reason.
func full(snap *state.Snapshot, j *state.Job) bool {
	may := false
	snap.Pools(func(q *state.Pool) bool {
		nodes := 0
		snap.LiveNodes(func(n *state.Node) bool {
			if n.Pool == q.Name {
				nodes++
			}
			return true
		})
		may = may || nodes < q.Max
		return !may
	})
	return !may && roomFor(snap, j, nil) == ""
}

// quieten waits until clients have left and environments have what they keep warm, or say why not, and deletes them.
func (p *Play) quieten() error {
	p.c.clients.wg.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), stockPatience)
	defer cancel()
	short := ""
	ok := p.c.Log.Until(ctx, func(snap *state.Snapshot) bool {
		short = ""
		snap.Environments(func(j *state.Job) bool {
			least := *j.Env.Spec.Warm.Min
			if t := j.Env.Spec.Warm.Target; t != nil {
				least = *t
			}
			if j.Stage == muster.JobLive && j.Env.Warm < least && j.Env.Alert == 0 && j.Env.Failures == 0 && j.Parked == "" && !(j.Waiting() > 0 && full(snap, j)) {
				short = fmt.Sprintf("environment %s has %d warm of %d, and nothing says why", j.Key, j.Env.Warm, least)
			}
			return short == ""
		})
		return short == "" || p.c.Err() != nil
	})
	if !ok {
		return fmt.Errorf("%s after the last fault %s\n%s", stockPatience, short, p.dump())
	}
	time.Sleep(p.c.delay(5*time.Millisecond, "environments end"))
	var keys []muster.JobKey
	p.c.Log.Latest().Environments(func(j *state.Job) bool {
		if j.Stage == muster.JobLive {
			keys = append(keys, j.Key)
		}
		return true
	})
	for _, key := range keys {
		if err := p.c.propose(&state.EnvironmentDeleted{Key: key, Claimed: true}); err != nil {
			return err
		}
	}
	var limited []muster.Namespace
	p.c.Log.Latest().EachLimits(func(l *state.NamespaceLimits) bool { limited = append(limited, l.Name); return true })
	for _, ns := range limited {
		if err := p.c.propose(&state.NamespaceLimited{Limits: state.NamespaceLimits{Name: ns}}); err != nil {
			return err
		}
	}
	return p.c.Err()
}

// ofEnvironment is what an expectation about an environment finds.
func ofEnvironment(j *state.Job, a *Act, want string, most int) string {
	n := j.Env.Warm
	if a.word(1) == "claimed" {
		n = j.Env.Claimed
	}
	if n >= most {
		return want
	}
	return fmt.Sprintf("%s %s %d", a.word(0), a.word(1), n)
}
