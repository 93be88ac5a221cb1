package sim

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/blob"
	"github.com/musterhq/muster/internal/cloud/fake"
	"github.com/musterhq/muster/internal/state"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// Play is a scenario that is being played.
type Play struct {
	c *Cluster
	s *Scenario
	r *rand.Rand // of what the scenario leaves open
	// must are jobs that fail only if their nodes do, and those are few; stopped those that a user stopped.
	must, stopped map[muster.JobKey]bool
	submitted     int
	claimed       int // clients that were begun
}

// NewPlay makes the cluster of a scenario. It does nothing before Run.
func NewPlay(s *Scenario) (*Play, error) {
	c, err := New(s.Config)
	if err != nil {
		return nil, err
	}
	return &Play{c: c, s: s, r: rand.New(rand.NewPCG(s.Config.Seed, 0x6d7573746572)), must: map[muster.JobKey]bool{}, stopped: map[muster.JobKey]bool{}}, nil
}

// Cluster is where it happens.
func (p *Play) Cluster() *Cluster { return p.c }

// Run plays it to its end, and answers with what went wrong.
func (p *Play) Run() error {
	defer p.c.Close()
	if err := p.c.Cloud.Play(p.s.Faults); err != nil {
		return err
	}
	if err := p.c.Start(); err != nil {
		return err
	}
	acts := slices.Clone(p.s.Acts)
	slices.SortStableFunc(acts, func(a, b Act) int { return cmp.Compare(a.At, b.At) })
	for i := range acts {
		a := &acts[i]
		// Never at the moment of anything else.
		time.Sleep(max(0, time.Until(p.c.began.Add(a.At))) + p.c.delay(5*time.Millisecond, "act", a.Line))
		if err := p.act(a); err != nil {
			return fmt.Errorf("%s: %w", a, err)
		}
		if err := p.c.Err(); err != nil {
			return err
		}
	}
	time.Sleep(p.c.delay(5*time.Millisecond, "no more faults"))
	p.c.note("no more faults")
	p.c.Log.Fail(nil)
	p.c.Blobs.Fail(nil)
	p.c.Cloud.SetFaults(fake.Faults{})
	if err := p.c.Cloud.Play(""); err != nil {
		return err
	}
	for _, id := range p.c.Machines() {
		if m := p.c.Machine(id); m != nil {
			m.Cut(false)
			m.Hang(false)
			m.Sick()
		}
	}
	p.c.slowProbes(0, 1)
	if again := p.c.lacksSecond(); again || p.c.paused() {
		if err := p.c.Reload(func(cfg *Config) { cfg.Paused, cfg.Second = false, cfg.Second || again }); err != nil {
			return err
		}
	}
	if err := p.releaseNodes(); err != nil {
		return err
	}
	if err := p.quieten(); err != nil {
		return err
	}
	if err := p.closeDown(); err != nil {
		return err
	}
	return p.end()
}

// releaseNodes ends what operators hold.
func (p *Play) releaseNodes() error {
	snap := p.c.Log.Latest()
	p.c.mu.Lock()
	p.c.releasing = true // and what is adopted later, held by its tags
	p.c.mu.Unlock()
	var held []muster.NodeID
	snap.LiveNodes(func(n *state.Node) bool {
		if n.Intent == muster.NodeHold {
			held = append(held, n.ID)
		}
		return true
	})
	for _, id := range held {
		if err := overtaken(p.c.propose(&state.NodeIntentSet{ID: id, Intent: muster.NodeRun, Who: "sim"})); err != nil {
			return err
		}
	}
	return nil
}

// closeDown takes back what keeps nodes for ever: minimum and spare ones.
func (p *Play) closeDown() error {
	snap := p.c.Log.Latest()
	var pools []state.Pool
	snap.Pools(func(q *state.Pool) bool {
		r := *q
		r.Min, r.Spare = 0, 0
		pools = append(pools, r)
		return true
	})
	if err := p.c.propose(&state.PoolsSet{Pools: pools}); err != nil {
		return err
	}
	return nil
}

// retry has members of a job wait again, if the job is there and one of them can.
func (p *Play) retry(key muster.JobKey, all bool) error {
	j := p.c.Log.Latest().Job(key)
	if j == nil {
		return nil
	}
	err := p.c.propose(&state.JobRetried{Key: key, UID: j.UID, All: all})
	if muster.IsKind(err, muster.FaultConflict) || muster.IsKind(err, muster.FaultNotFound) || muster.IsKind(err, muster.FaultQuota) {
		return nil
	}
	return err
}

func (p *Play) act(a *Act) error {
	if a.Verb != "expect" {
		p.c.note("%s %s", a.Verb, strings.TrimSpace(strings.Join(a.Words, " ")+" "+a.Options["for"]))
	}
	o := options{of: a.Options}
	var err error
	switch a.Verb {
	case "submit":
		err = p.submit(a, &o)
	case "stop":
		key := jobKey(a.word(0))
		p.stopped[key] = true
		if err := p.c.propose(&state.JobStopped{Key: key}); err != nil && !muster.IsKind(err, muster.FaultNotFound) && overtaken(err) != nil {
			return err
		}
	case "retry":
		if err := p.retry(jobKey(a.word(0)), slices.Contains(a.Words, "all")); overtaken(err) != nil {
			return err
		}
	case "leader", "crash":
		err = p.c.Restart(a.Verb == "crash")
	case "down":
		p.c.Stop()
		time.Sleep(o.duration("for", time.Minute))
		err = p.c.Restart(true)
	case "env":
		err = p.environment(a, &o)
	case "unenv":
		err = p.unset(a, &o)
	case "claim":
		p.claim(a, &o)
	case "clock":
		d, e := time.ParseDuration(a.word(0))
		if e != nil {
			return e
		}
		p.c.step(d)
	case "reload":
		workers := o.number("workers", 0)
		err = p.c.Reload(func(cfg *Config) {
			cfg.Paused, cfg.Second = slices.Contains(a.Words, "paused"), slices.Contains(a.Words, "second")
			if workers > 0 {
				cfg.Workers = workers
			}
		})
	case "config":
		p.c.configure(a.word(0), o.number("max", 1))
	case "store":
		p.c.Blobs.Fail(&muster.Fault{Kind: muster.FaultTransient, Message: "the store does not answer"})
		time.AfterFunc(o.duration("for", time.Minute)+p.c.delay(time.Millisecond, a.Line), func() { p.c.Blobs.Fail(nil) })
	case "full":
		p.full(o.duration("for", 10*time.Second) + p.c.delay(time.Millisecond, a.Line))
	case "limit":
		err = overtaken(p.c.propose(&state.NamespaceLimited{Limits: state.NamespaceLimits{Name: muster.Namespace(a.word(0)), Allocs: o.number("allocs", 0), CPU: muster.MilliCPU(o.real("cpu", 0) * 1000)}}))
	case "faults":
		err = p.c.Cloud.Play(strings.ReplaceAll(strings.TrimPrefix(a.Rest, "none"), ";", "\n"))
		return err
	case "pool", "unpool":
		var pools []state.Pool
		p.c.Log.Latest().Pools(func(q *state.Pool) bool {
			if q.Name != muster.PoolName(a.word(0)) {
				pools = append(pools, *q)
			}
			return true
		})
		if a.Verb == "pool" {
			pools = append(pools, poolOf(a, &o))
		}
		err = overtaken(p.c.propose(&state.PoolsSet{Pools: pools}))
	case "expect":
		return p.expect(a)
	default:
		err = p.toNodes(a, &o)
	}
	if err != nil {
		return err
	}
	return o.end()
}

func jobKey(name string) muster.JobKey {
	name, ns, other := strings.Cut(name, "@")
	if !other {
		ns = string(muster.DefaultNamespace)
	}
	return muster.JobKey{Namespace: muster.Namespace(ns), Name: name}
}

// nodes that an act names.
func (p *Play) nodes(name string) ([]muster.NodeID, error) {
	job, index, member := strings.Cut(name, "/")
	switch {
	case member:
		i, err := strconv.Atoi(index)
		if err != nil {
			return nil, err
		}
		snap := p.c.Log.Latest()
		j := snap.Job(jobKey(job))
		if j == nil {
			return nil, fmt.Errorf("there is no job %s", job)
		}
		m := snap.Member(j.UID, i)
		if m == nil || snap.Alloc(m.Alloc()) == nil {
			return nil, fmt.Errorf("member %d of job %s was never placed", i, job)
		}
		return []muster.NodeID{snap.Alloc(m.Alloc()).Node}, nil
	case name == "any" || name == "all":
		ids := p.c.Machines()
		if name == "any" && len(ids) > 0 {
			ids = []muster.NodeID{ids[p.r.IntN(len(ids))]}
		}
		return ids, nil
	}
	return nil, fmt.Errorf("%q is no node: any, all or JOB/INDEX", name)
}

func (p *Play) toNodes(a *Act, o *options) error {
	ids, err := p.nodes(a.word(0))
	if err != nil {
		return err
	}
	for _, id := range ids {
		p.c.note("%s %s", a.Verb, id)
		if err := p.toNode(a, o, id); err != nil {
			return err
		}
	}
	if len(ids) == 0 {
		o.used = len(o.of) // nobody to ask
	}
	return nil
}

func (p *Play) toNode(a *Act, o *options, id muster.NodeID) error {
	o.used = 0
	m := p.c.machine(id)
	set := func(intent muster.NodeIntent) error {
		return overtaken(p.c.propose(&state.NodeIntentSet{ID: id, Intent: intent, Who: "sim"}))
	}
	switch a.Verb {
	case "hold":
		return set(muster.NodeHold)
	case "run":
		return set(muster.NodeRun)
	case "drain":
		f := &state.NodeIntentSet{ID: id, Intent: muster.NodeDrain, Who: "sim"}
		if d := o.duration("within", 0); d > 0 {
			f.Until = p.c.Log.Now().Add(d)
		}
		return overtaken(p.c.propose(f))
	case "destroy":
		return overtaken(p.c.propose(&state.NodeTerminating{ID: id, Reason: "an operator said so", Who: "sim"}))
	}
	if m == nil {
		return fmt.Errorf("nothing stands behind node %s", id)
	}
	meanwhile := func(turn func(on bool)) {
		turn(true)
		if d := o.duration("for", 0); d > 0 {
			time.AfterFunc(d+p.c.delay(time.Millisecond, a.Line, id), func() { turn(false) })
		}
	}
	switch a.Verb {
	case "kill":
		m.Kill()
	case "cut":
		meanwhile(m.Cut)
	case "hang":
		meanwhile(m.Hang)
	case "sick":
		meanwhile(func(on bool) {
			if on {
				m.Sick("no runtime works")
			} else {
				m.Sick()
			}
		})
	case "halt":
		meanwhile(func(on bool) { p.c.halt(m, on) })
	case "probe":
		answer := wire.ProbeAnswer{Why: a.word(1), Broken: a.word(1) == "broken"}
		m.Answer(slices.Repeat([]wire.ProbeAnswer{answer}, o.number("times", 1))...)
	case "stick":
		m.Stick()
	case "vanish":
		p.c.Cloud.Vanish(m.instance.ID)
	case "notice":
		p.c.Cloud.Notice(m.instance.ID, o.duration("in", 2*time.Minute))
	}
	return nil
}

// overtaken: what the node's state refuses by now is no fault of the scenario.
func overtaken(err error) error {
	if muster.IsKind(err, muster.FaultConflict) || muster.IsKind(err, muster.FaultDiskLow) {
		return nil
	}
	return err
}

func (p *Play) submit(a *Act, o *options) error {
	key := jobKey(a.word(0))
	spec := &api.JobSpec{Name: key.Name, Count: o.number("count", 1), Template: api.Template{Command: strings.Fields(a.Rest),
		Resources: api.ResourcesSpec{CPU: o.real("cpu", 1), Memory: api.Size(o.size("memory", 1<<20))}},
		OutputLimit: api.Size(o.size("limit", 0)), Timeout: api.Duration(o.duration("timeout", 0))}
	priority := o.number("priority", 50)
	spec.Priority = &priority
	if kind := o.text("type", ""); kind != "" {
		spec.Type = kind
		spec.Update = &api.UpdateSpec{MaxParallel: o.number("parallel", 0), MinHealthyTime: api.Duration(o.duration("healthy", 0)),
			HealthyDeadline: api.Duration(o.duration("deadline", 0)), AutoRevert: slices.Contains(a.Words, "revert")}
	}
	if n := o.number("attempts", 0); n > 0 {
		spec.Restart = api.RestartSpec{Attempts: n, On: []string{"any"}}
	}
	if n := o.number("input", 0); n > 0 {
		digest, err := p.upload(n)
		if muster.IsKind(err, muster.FaultTransient) {
			o.used = len(o.of)
			return nil // the store fails, and the user has been told
		}
		if err != nil {
			return err
		}
		spec.Inputs = []api.InputSpec{{Path: "in", Digest: digest}}
	}
	for _, path := range strings.FieldsFunc(o.text("outputs", ""), func(r rune) bool { return r == ',' }) {
		name, optional := strings.CutSuffix(path, "?")
		spec.Outputs = append(spec.Outputs, api.OutputSpec{Path: name, Optional: optional})
	}
	spec.Defaults()
	p.submitted++
	f := &state.JobSubmitted{Key: key, UID: muster.JobUID(fmt.Sprintf("u%sx%d", key.Name, p.submitted)), Spec: spec, Replace: slices.Contains(a.Words, "replace")}
	err := p.c.propose(f)
	if err == nil {
		p.must[key], p.stopped[key] = slices.Contains(a.Words, "must"), false
	}
	return overtaken(err)
}

// full has the log take nothing for a time.
func (p *Play) full(d time.Duration) {
	began := time.Now()
	p.c.Log.Fail(func(state.Fact) error {
		p.c.mu.Lock()
		defer p.c.mu.Unlock()
		p.c.prevented = time.Now()
		return muster.Faultf(muster.FaultDiskLow, "the disk has been full since %s", began.Format(time.TimeOnly))
	})
	time.AfterFunc(d, func() {
		p.c.mu.Lock()
		p.c.prevented = time.Now()
		p.c.mu.Unlock()
		p.c.Log.Fail(nil)
	})
}

// upload brings an input of n bytes, as a user does before the job that needs it.
func (p *Play) upload(n int) (string, error) {
	data := bytes.Repeat([]byte{byte('a' + p.r.IntN(26))}, n)
	digest := fmt.Sprintf("sha256:%x", sha256.Sum256(data))
	_, err := p.c.Blobs.Put(context.Background(), blob.UploadKey(digest), bytes.NewReader(data))
	return digest, err
}
