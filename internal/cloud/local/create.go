package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/journal"
	"github.com/musterhq/muster/internal/atomicfile"
	"github.com/musterhq/muster/internal/cloud"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// helloTimeout is how long an agent may take to answer before it counts as hung.
const helloTimeout = 3 * time.Second

// Create makes instances, all at once.
func (p *Provider) Create(ctx context.Context, intents []cloud.Intent) []cloud.Created {
	results := make([]cloud.Created, len(intents))
	var wg sync.WaitGroup
	for n, intent := range intents {
		wg.Go(func() {
			i, err := p.create(ctx, intent)
			if err != nil {
				results[n].Err = err
				return
			}
			results[n].Instance = i.cloud()
		})
	}
	wg.Wait()
	return results
}

func (p *Provider) create(ctx context.Context, intent cloud.Intent) (*instance, error) {
	o, err := p.offering(intent)
	if err != nil {
		return nil, err
	}
	id := idOf(p.cfg.Owner, intent.Token)
	done, err := p.turn(ctx, id)
	if err != nil {
		return nil, err
	}
	defer done()
	i, err := p.read(id)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if i, err = p.make(ctx, id, intent, o); err != nil {
			return nil, err
		}
	case err != nil:
		return nil, transient(err, "instance %s", id)
	case i.Tags.Owner != p.cfg.Owner || i.Tags.Token != intent.Token:
		return nil, muster.Faultf(muster.FaultAlreadyExists, "instance %s belongs to another intent (owner %s)", id, i.Tags.Owner)
	case i.Destroying:
		return nil, muster.Faultf(muster.FaultConflict, "instance %s of token %s is being destroyed", id, intent.Token)
	}
	// An earlier call may have died between the record and the agent. An agent that was ever
	// started is left to link.
	if _, err := journal.ReadRecord(i.dir); errors.Is(err, fs.ErrNotExist) {
		if err := p.start(i, i.BootDelay, false); err != nil {
			return nil, err
		}
	}
	return i, nil
}

func (p *Provider) offering(intent cloud.Intent) (Offering, error) {
	market := intent.Market
	market = cmp.Or(market, muster.OnDemand)
	if intent.Token == "" || intent.Node == "" {
		return Offering{}, muster.Faultf(muster.FaultInvalid, "an intent needs a token and a node id")
	}
	for _, o := range p.cfg.Offerings {
		if o.Name == intent.Offering && o.Zone == intent.Zone && o.Market == market {
			return o, nil
		}
	}
	return Offering{}, &muster.Fault{Kind: muster.FaultInvalid, Field: "offering",
		Message: fmt.Sprintf("there is no offering %s in zone %q on market %s", intent.Offering, intent.Zone, market)}
}

// make writes down a new instance; nothing of it runs yet.
func (p *Provider) make(ctx context.Context, id muster.InstanceID, intent cloud.Intent, o Offering) (*instance, error) {
	select {
	case p.admit <- struct{}{}:
		defer func() { <-p.admit }()
	case <-ctx.Done():
		return nil, transient(context.Cause(ctx), "instance %s", id)
	}
	if o.MaxInstances > 0 {
		all, _, err := p.all()
		if err != nil {
			return nil, err
		}
		if n := count(all, o); n >= o.MaxInstances {
			return nil, &muster.Fault{Kind: muster.FaultCapacity,
				Message: fmt.Sprintf("offering %s: %d of %d instances are in use", o.Name, n, o.MaxInstances),
				Scope:   muster.Scope{Provider: o.Provider, Zone: o.Zone, Offering: o.Name, Market: o.Market}}
		}
	}
	i := &instance{
		Tags:     cloud.Tags{Owner: p.cfg.Owner, Token: intent.Token, Node: intent.Node, Pool: intent.Pool},
		Offering: o.Name, Zone: o.Zone, Market: o.Market, Capacity: o.Capacity, Attributes: o.Attributes,
		BootDelay: o.BootDelay, Created: muster.At(time.Now()), id: id, dir: p.dir(id),
	}
	err := os.MkdirAll(i.dir, 0o700)
	if err == nil {
		err = i.write()
	}
	if err != nil {
		return nil, transient(err, "instance %s", id)
	}
	return i, nil
}

// count is how many instances of an offering there are, of any owner.
func count(all []*instance, o Offering) int {
	n := 0
	for _, i := range all {
		if i.Offering == o.Name && i.Zone == o.Zone && i.Market == o.Market {
			n++
		}
	}
	return n
}

// start starts the agent of an instance as a process of its own session, which
// outlives this one. Without replace it ends by itself where another one runs.
func (p *Provider) start(i *instance, bootDelay time.Duration, replace bool) error {
	log, err := os.OpenFile(filepath.Join(i.dir, "agent.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return transient(err, "instance %s", i.id)
	}
	defer func() { _ = log.Close() }()
	args := []string{"agent", "--detached", "--lease-end", "self", "--dir", i.dir, "--node", string(i.Tags.Node),
		"--cpu", i.Capacity.CPU.String(), "--memory", fmt.Sprint(int64(i.Capacity.Memory)), "--disk", fmt.Sprint(int64(i.Capacity.Disk))}
	// What one instance has pulled, the next that takes its place need not.
	args = append(args, "--images", filepath.Join(p.cfg.Dir, imagesName))
	if os.Geteuid() == 0 {
		args = append(args, "--cgroup", cgroupOf(i.id))
	}
	if replace {
		args = append(args, "--replace")
	}
	if p.cfg.AgentArgs != nil {
		args = append(args, p.cfg.AgentArgs(i.Tags.Pool)...)
	}
	if p.cfg.Network != nil {
		settings, err := p.cfg.Network(i.Tags.Pool)
		if err != nil {
			return err
		}
		if len(settings) > 0 {
			// They may have a password, which must not be in a command line.
			path := filepath.Join(i.dir, networkName)
			if err := atomicfile.Replace(path, settings); err != nil {
				return transient(err, "instance %s", i.id)
			}
			args = append(args, "--network", path)
		}
	}
	if bootDelay > 0 {
		args = append(args, "--boot-delay", bootDelay.String())
	}
	names := make([]string, 0, len(i.Attributes))
	for name := range i.Attributes {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		args = append(args, "--attr", name+"="+i.Attributes[name])
	}
	cmd := exec.Command(p.cfg.NodeBinary, args...)
	cmd.Dir = "/"
	cmd.Env = agentEnv(os.Environ())
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		kind := muster.FaultTransient
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			kind = muster.FaultInvalid
		}
		return &muster.Fault{Kind: kind, Message: fmt.Sprintf("instance %s: agent", i.id), Err: err}
	}
	p.log.Info("agent started", "instance", i.id, "node", i.Tags.Node, "pid", cmd.Process.Pid)
	c := &child{process: cmd.Process, done: make(chan struct{})}
	p.mu.Lock()
	p.quiet[i.id] = time.Now() // from now on it has a while to show that it lives
	p.children[i.id] = append(p.children[i.id], c)
	p.mu.Unlock()
	// Waited for so that it does not stay as a zombie while this process lives.
	go func() {
		err := cmd.Wait()
		p.log.Info("agent ended", "instance", i.id, "node", i.Tags.Node, "pid", cmd.Process.Pid, "how", err)
		p.mu.Lock()
		if p.children[i.id] = slices.DeleteFunc(p.children[i.id], func(x *child) bool { return x == c }); len(p.children[i.id]) == 0 {
			delete(p.children, i.id)
		}
		p.mu.Unlock()
		close(c.done)
	}()
	return nil
}

// child is an agent that this process started.
type child struct {
	process *os.Process
	done    chan struct{}
}

// killChildren ends the agents of an instance that this process started, also
// one that has not got as far as its record.
func (p *Provider) killChildren(ctx context.Context, id muster.InstanceID) error {
	p.mu.Lock()
	list := slices.Clone(p.children[id])
	p.mu.Unlock()
	for _, c := range list {
		if err := c.process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return err
		}
		select {
		case <-c.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// networkName is the file in an instance's directory with the network settings of its agent.
const networkName = "network.json"

// agentEnv is what an agent needs of the server's environment: it fetches
// inputs, and nothing else. Commands inherit nothing of it.
func agentEnv(all []string) []string {
	var env []string
	for _, kv := range all {
		name, _, _ := strings.Cut(kv, "=")
		switch strings.ToUpper(name) {
		case "PATH", "HOME", "LANG", "TZ", "TMPDIR", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR":
			env = append(env, kv)
		}
	}
	return env
}

// cgroupOf is the cgroup below which an instance's sandboxes are, where this is root.
func cgroupOf(id muster.InstanceID) string { return "muster/" + string(id) }

// StartAgent makes sure that an agent of this build runs on an instance that is powered on.
func (p *Provider) StartAgent(ctx context.Context, id muster.InstanceID) error {
	if _, err := p.mine(id); err != nil {
		return err
	}
	done, err := p.turn(ctx, id)
	if err != nil {
		return err
	}
	defer done()
	i, err := p.mine(id)
	if err != nil {
		return err
	}
	if i.Destroying {
		return muster.Faultf(muster.FaultNotFound, "instance %s is being destroyed", id)
	}
	r, err := journal.ReadRecord(i.dir)
	if errors.Is(err, fs.ErrNotExist) {
		// Never started, or started and not far enough yet. Two at once do no harm: one gets the lock.
		return p.start(i, i.BootDelay, false)
	}
	// An instance that is found again after its node was taken for gone belongs to another node: its agent has to learn that.
	// So has one whose directory was moved with the server's data directory.
	if err == nil && r.Alive() && !r.Moved(i.dir) && r.Node == i.Tags.Node && p.sameBuild(r) && p.answers(ctx, i) {
		return nil
	}
	on, err := p.powered(ctx, i)
	if err != nil {
		return err
	}
	if !on {
		return muster.Faultf(muster.FaultNotFound, "instance %s is off", id)
	}
	return p.start(i, 0, true)
}

// sameBuild reports whether a running agent is the program that would be started.
func (p *Provider) sameBuild(r journal.Record) bool {
	runs, err1 := os.Stat(fmt.Sprintf("/proc/%d/exe", r.Pid))
	ours, err2 := os.Stat(p.cfg.NodeBinary)
	return err1 == nil && err2 == nil && os.SameFile(runs, ours)
}

// answers reports whether the agent answers, or is still booting.
func (p *Provider) answers(ctx context.Context, i *instance) bool {
	if info, err := os.Stat(filepath.Join(i.dir, journal.RecordName)); err == nil && time.Since(info.ModTime()) < i.BootDelay+p.startGrace {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	c := wire.NewClient(journal.Dialer(i.dir))
	defer c.Close()
	_, err := c.Hello(ctx)
	return err == nil
}
