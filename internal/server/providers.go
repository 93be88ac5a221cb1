package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"os"
	osexec "os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/exec"
	"github.com/musterhq/muster/internal/cloud/local"
	"github.com/musterhq/muster/internal/cloud/static"
	"github.com/musterhq/muster/internal/control/reach"
	"github.com/musterhq/muster/internal/state"
)

// providers are the configured clouds by name. A turn makes them and only reads the map after that.
type providers map[muster.ProviderName]cloud.Provider

// newProviders makes the providers of a configuration. It asks nothing of them yet, so it also
// serves to check a configuration (mayRunWith). cluster marks the instances of this cluster at the
// provider: two clusters may share an account.
func (s *Server) newProviders(config *api.ServerConfig, cluster string, r *reach.Reach) (providers, error) {
	out := providers{}
	for i := range config.Providers {
		spec := &config.Providers[i]
		p, err := s.provider(spec, cluster, r)
		if named := "provider " + string(spec.Name) + ": "; err != nil {
			// Most drivers name it themselves.
			if strings.HasPrefix(err.Error(), named) {
				return nil, err
			}
			return nil, fmt.Errorf("%s%w", named, err)
		}
		if len(spec.Labels) > 0 {
			p = cloud.NewLabelled(p, spec.Labels)
		}
		if rates := ratesOf(spec, p); rates != (cloud.Rates{}) {
			p = cloud.NewLimited(p, rates)
		}
		out[muster.ProviderName(spec.Name)] = p
	}
	return out, nil
}

func (s *Server) provider(spec *api.ProviderSpec, cluster string, r *reach.Reach) (cloud.Provider, error) {
	log := s.log.With("provider", spec.Name)
	// For local the path must be short: the sockets of instances are below it, and the path of a
	// Unix socket has at most 107 bytes.
	dir := filepath.Join(s.cfg.DataDir, spec.Name)
	switch spec.Type {
	case api.ProviderLocal:
		node, err := s.nodeBinary()
		if err != nil {
			return nil, err
		}
		offerings := make([]local.Offering, len(spec.Offerings))
		for i := range spec.Offerings {
			offerings[i] = localOffering(spec, &spec.Offerings[i])
		}
		return local.New(local.Config{Dir: dir, Owner: cluster, NodeBinary: node, Offerings: offerings, AgentArgs: s.agentArgs, Network: s.nodeNetwork, Logger: log})
	case api.ProviderStatic:
		c := staticConfig(spec, dir, cluster, r, log)
		c.Records = hosts{c.Name, s.state, ledgerOf(s)}
		return static.New(c)
	case api.ProviderExec:
		var env []string
		// Sorted, so that the program gets the same environment at each start.
		for _, name := range slices.Sorted(maps.Keys(spec.Env)) {
			env = append(env, name+"="+spec.Env[name])
		}
		return exec.New(exec.Config{
			Name: muster.ProviderName(spec.Name), Owner: cluster, Command: spec.Command, Env: env, Timeout: spec.Timeout.Std(), Access: access(spec.SSH), Logger: log,
		})
	}
	return s.cloudProvider(spec, cloud.Env{Owner: cluster, Server: s.raft.Self(), Dir: dir, Logger: log})
}

// cloudProvider makes the provider of a cloud.
func (s *Server) cloudProvider(spec *api.ProviderSpec, env cloud.Env) (cloud.Provider, error) {
	if s.opts.OpenCloud == nil {
		return nil, fmt.Errorf("this program was built without the drivers of clouds (build tag lean); run one that `make build` has made")
	}
	k, err := s.cloudKeys()
	if err != nil {
		return nil, err
	}
	for i := range spec.Offerings {
		o := offering(spec, &spec.Offerings[i])
		o.Limit = spec.Offerings[i].Max
		env.Offerings = append(env.Offerings, o)
	}
	env.Access = access(spec.SSH)
	env.Access.KeyFile = cmp.Or(env.Access.KeyFile, k.file)
	return s.opts.OpenCloud(spec, env)
}

// ratesOf is how often a provider may be called: what its driver knows of its cloud, changed by the
// configuration. Zero rates bound nothing.
func ratesOf(spec *api.ProviderSpec, p cloud.Provider) cloud.Rates {
	var out cloud.Rates
	if r, ok := cloud.As[cloud.Rated](p); ok {
		out = r.Rates()
	}
	set := func(r *cloud.Rate, perSecond float64) {
		if perSecond > 0 {
			// A second's worth at once, as one call can ask for several.
			*r = cloud.Rate{PerSecond: perSecond, Burst: max(1, int(math.Ceil(perSecond)))}
		}
	}
	set(&out.Create, spec.Rates.Create)
	set(&out.Destroy, spec.Rates.Destroy)
	set(&out.Read, spec.Rates.Read)
	return out
}

// access is how to reach instances that do not say it themselves.
func access(s *api.SSHSpec) cloud.Access {
	if s == nil {
		return cloud.Access{}
	}
	a := cloud.Access{User: s.User, KeyFile: s.KeyFile, KnownHosts: s.KnownHosts, Dir: s.Dir, Shutdown: s.Shutdown}
	if s.ProxyJump != "" {
		a.Jump = &cloud.Jump{KeyFile: s.ProxyJumpKeyFile, HostKeys: s.ProxyJumpHostKeys}
		a.Jump.User, a.Jump.Address = api.SplitJump(s.ProxyJump)
		// Keys in the configuration are the only ones that count, as for hosts.
		if len(a.Jump.HostKeys) == 0 {
			a.Jump.KnownHosts = s.KnownHosts
		}
	}
	return a
}

// staticConfig is the configuration of a provider of fixed hosts. A host's own settings come before
// those of the provider.
func staticConfig(spec *api.ProviderSpec, dir, cluster string, r *reach.Reach, log *slog.Logger) static.Config {
	c := static.Config{Name: muster.ProviderName(spec.Name), Dir: dir, Owner: cluster, Hosts: r, Logger: log}
	for i := range spec.Offerings {
		c.Offerings = append(c.Offerings, offering(spec, &spec.Offerings[i]))
	}
	for i := range spec.Hosts {
		h := &spec.Hosts[i]
		a := access(spec.SSH)
		a.Address, a.HostKeys = h.Address, h.HostKeys
		a.User, a.KeyFile = cmp.Or(h.User, a.User), cmp.Or(h.KeyFile, a.KeyFile)
		// Keys in the configuration are the only ones that count: a file could hold an older key of
		// the same address.
		if len(a.HostKeys) > 0 {
			a.KnownHosts = ""
		}
		a.Shutdown = "" // nobody could start it again
		c.List = append(c.List, static.Host{
			Name: h.Name, Access: a, Offering: muster.OfferingName(h.Offering), Price: muster.Price(math.Round(h.Price * 1e6)), Zone: h.Zone, Attributes: h.Attributes,
		})
	}
	return c
}

// offering converts an offering of the configuration. CPU is in cores there, memory and disk in
// bytes, the price per hour in whole units of the currency; rows have thousandths of a core and
// millionths of the currency. Keys of meta get a prefix, so that they cannot hide an attribute.
func offering(p *api.ProviderSpec, o *api.OfferingSpec) muster.Offering {
	attributes := map[string]string{}
	maps.Copy(attributes, o.Attributes)
	for k, v := range o.Meta {
		attributes[muster.MetaPrefix+k] = v
	}
	var devices []muster.Device
	for _, d := range o.Devices {
		devices = append(devices, muster.Device{Kind: d.Kind, Model: d.Model, Count: d.Count, Shared: d.Shared})
	}
	return muster.Offering{
		Provider: muster.ProviderName(p.Name), Name: muster.OfferingName(o.Name), Zone: o.Zone, Market: muster.Market(o.Market),
		Price:      muster.Price(o.Price * 1e6),
		Capacity:   muster.Resources{CPU: muster.MilliCPU(o.CPU * 1000), Memory: o.Memory.Bytes(), Disk: o.Disk.Bytes()},
		Attributes: attributes, Devices: devices, Available: true,
	}
}

func localOffering(p *api.ProviderSpec, o *api.OfferingSpec) local.Offering {
	// The attributes are known before there is a node, so that jobs may ask for them. The
	// configuration may override them.
	out := offering(p, o)
	attributes := map[string]string{"os": runtime.GOOS, "arch": runtime.GOARCH}
	maps.Copy(attributes, out.Attributes)
	out.Attributes = attributes
	return local.Offering{Offering: out, BootDelay: o.BootDelay.Std(), MaxInstances: o.Max}
}

// nodeBinary finds the muster-node program: the one of the options, else beside this program, else
// in PATH.
func (s *Server) nodeBinary() (string, error) {
	if s.opts.NodeBinary != "" {
		return s.opts.NodeBinary, nil
	}
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	beside := filepath.Join(filepath.Dir(self), "muster-node")
	if st, err := os.Stat(beside); err == nil && st.Mode().IsRegular() {
		return beside, nil
	}
	if found, err := osexec.LookPath("muster-node"); err == nil {
		return filepath.Abs(found)
	}
	return "", fmt.Errorf("the program muster-node is neither beside %s nor in PATH; install it, or run `make build`", self)
}

// reach makes the connections to the nodes of a leadership. They find the provider of a node
// through providerNow, and so follow a reload of the configuration.
// propose commits facts about the nodes; it is nil where nothing connects to any.
func (s *Server) reach(propose func(context.Context, state.Fact) error) (*reach.Reach, error) {
	own, err := s.nodeBinary()
	if err != nil {
		// A server of remote nodes may not need the program. Whatever needs it reports the error.
		own = ""
	}
	programs := &reach.Programs{Own: own}
	if s.cfg.NodeBinaries != "" {
		programs.Dirs = append(programs.Dirs, s.cfg.NodeBinaries)
	}
	if own != "" {
		// Packages have the programs for other architectures in lib/muster.
		programs.Dirs = append(programs.Dirs, filepath.Dir(own), filepath.Join(filepath.Dir(own), "..", "lib", "muster"))
	}
	var rekeyed func(context.Context, muster.NodeID, string) error
	if propose != nil {
		rekeyed = func(ctx context.Context, id muster.NodeID, line string) error {
			if s.state.Latest().Node(id) == nil {
				// The instance of a check belongs to no node. Both its keys are good until it is destroyed.
				return nil
			}
			return propose(ctx, &state.NodeRekeyed{ID: id, HostKey: line})
		}
	}
	return reach.New(reach.Config{
		Rekeyed: rekeyed, Provider: s.providerNow, Programs: programs, Probe: s.probe,
		AgentArgs: func(n *state.Node) []string { return append(s.agentArgs(n.Pool), s.metadataArgs(n)...) },
		Network:   func(n *state.Node) ([]byte, error) { return s.nodeNetwork(n.Pool) }, Logger: s.log,
		Cluster:     func() string { return s.state.Latest().Meta().Cluster },
		Replacement: s.replacementKey,
	})
}

// providerNow returns the provider of a name in the present turn, nil if there is none.
func (s *Server) providerNow(name muster.ProviderName) cloud.Provider {
	if l := s.stats.now.Load(); l != nil {
		return l.providers[name]
	}
	return nil
}

// probe is the command that a new node must pass before it serves: that of its pool, else that of
// its provider.
func (s *Server) probe(n *state.Node) reach.Probe {
	config := s.config()
	if p := config.Pool(string(n.Pool)); p.BootProbe.Command != "" {
		return reach.Probe{Command: p.BootProbe.Command, Timeout: p.BootProbe.Timeout.Std()}
	}
	p := config.Provider(string(n.Offering.Provider))
	return reach.Probe{Command: p.BootProbe.Command, Timeout: p.BootProbe.Timeout.Std()}
}

// lease is how long a node may go without contact before it ends itself; 0: it never does.
func (s *Server) lease(n *state.Node) time.Duration {
	return s.config().Pool(string(n.Pool)).Lease.Std()
}

// ociRuntime is the program with which nodes of a pool run containers; empty: the agent chooses.
func (s *Server) ociRuntime(pool muster.PoolName) string {
	return s.config().Pool(string(pool)).OCIRuntime
}

// agentArgs are the arguments that the configuration of a pool adds to those of its nodes' agents.
// The default of the input limit is left out: agents have it by themselves.
func (s *Server) agentArgs(pool muster.PoolName) (args []string) {
	p := s.config().Pool(string(pool))
	if p.OCIRuntime != "" {
		args = append(args, "--oci-runtime", p.OCIRuntime)
	}
	if p.RuntimeHoles == api.HolesRefuse {
		args = append(args, "--refuse-holes")
	}
	for _, a := range p.AllowAddresses {
		args = append(args, "--allow-addresses", a)
	}
	for _, name := range slices.Sorted(maps.Keys(p.Volumes)) {
		v := p.Volumes[name]
		flag := "--volume"
		if v.Writable {
			flag = "--writable-volume"
		}
		args = append(args, flag, name+"="+v.Path)
	}
	if p.InputLimit != 0 && p.InputLimit != api.DefaultInputLimit {
		args = append(args, "--input-limit", fmt.Sprint(int64(p.InputLimit)))
	}
	return args
}

// metadataArgs tell an agent which metadata service its cloud has. Agents ask none without them.
func (s *Server) metadataArgs(n *state.Node) []string {
	p, ok := cloud.As[cloud.MetadataServed](s.providerNow(n.Offering.Provider))
	if !ok {
		return nil
	}
	return []string{"--metadata", p.Metadata()}
}

// destroyAll destroys every instance of this cluster, for an ephemeral server. It runs after the
// loops have ended, so that nothing launches meanwhile, and while the log still runs. It asks the
// providers for their lists and does not go by the state: an instance whose launch was not
// confirmed yet is in the list only. One provider that fails does not keep the others from being
// asked.
func (s *Server) destroyAll() error {
	ctx, cancel := context.WithTimeout(context.Background(), destroyTime)
	defer cancel()
	cluster := s.state.Latest().Meta().Cluster
	if cluster == "" {
		return nil // never led: nothing was made
	}
	r, err := s.reach(nil)
	if err != nil {
		return err
	}
	ps, err := s.newProviders(s.config(), cluster, r)
	if err != nil {
		return err
	}
	var errs []error
	for name, p := range ps {
		l, err := p.List(ctx, "")
		if err != nil {
			errs = append(errs, fmt.Errorf("provider %s: %w", name, err))
			continue
		}
		ids := make([]muster.InstanceID, len(l.Instances))
		for i := range l.Instances {
			ids[i] = l.Instances[i].ID
		}
		for i, err := range p.Destroy(ctx, ids) {
			if err != nil {
				errs = append(errs, fmt.Errorf("instance %s: %w", ids[i], err))
			}
		}
	}
	return errors.Join(errs...)
}
