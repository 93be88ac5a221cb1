package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/local"
	"github.com/musterhq/muster/internal/state"
)

// providers are the configured clouds by name.
type providers map[muster.ProviderName]cloud.Provider

func (s *Server) providers(cluster string) (providers, error) {
	out := providers{}
	for i := range s.cfg.Providers {
		spec := &s.cfg.Providers[i]
		p, err := s.provider(spec, cluster)
		if err != nil {
			return nil, fmt.Errorf("provider %s: %w", spec.Name, err)
		}
		out[muster.ProviderName(spec.Name)] = p
	}
	return out, nil
}

func (s *Server) provider(spec *api.ProviderSpec, cluster string) (cloud.Provider, error) {
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
		return local.New(local.Config{
			// Short, because the sockets of instances are below it and a socket's path may have 107 bytes.
			Dir: filepath.Join(s.cfg.DataDir, spec.Name), Owner: cluster, NodeBinary: node, Offerings: offerings, Logger: s.log.With("provider", spec.Name),
		})
	}
	return nil, fmt.Errorf("type %s is unknown", spec.Type)
}

func localOffering(p *api.ProviderSpec, o *api.OfferingSpec) local.Offering {
	// Known before a node is there, so that jobs may ask for it; the configuration may say otherwise.
	attributes := map[string]string{"os": runtime.GOOS, "arch": runtime.GOARCH}
	maps.Copy(attributes, o.Attributes)
	return local.Offering{
		Offering: muster.Offering{
			Provider: muster.ProviderName(p.Name), Name: muster.OfferingName(o.Name), Zone: o.Zone, Market: muster.Market(o.Market),
			Price:      muster.Price(o.Price * 1e6),
			Capacity:   muster.Resources{CPU: muster.MilliCPU(o.CPU * 1000), Memory: o.Memory.Bytes(), Disk: o.Disk.Bytes()},
			Attributes: attributes, Available: true,
		},
		BootDelay: o.BootDelay.Std(), MaxInstances: o.Max,
	}
}

// nodeBinary finds muster-node: as told, beside this program, or in PATH.
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
	if found, err := exec.LookPath("muster-node"); err == nil {
		return filepath.Abs(found)
	}
	return "", fmt.Errorf("the program muster-node is neither beside %s nor in PATH; install it, or run `make build`", self)
}

// dial opens a connection to a node's agent.
func (p providers) dial(ctx context.Context, n *state.Node) (net.Conn, error) {
	d, ok := p[n.Offering.Provider].(cloud.Dialer)
	if !ok {
		return nil, muster.Faultf(muster.FaultInvalid, "node %s: its provider %s is not configured", n.ID, n.Offering.Provider)
	}
	return d.DialAgent(ctx, n.Instance)
}

// startAgent makes sure that an agent runs on a node.
func (p providers) startAgent(ctx context.Context, n *state.Node) error {
	a, ok := p[n.Offering.Provider].(cloud.AgentStarter)
	if !ok {
		return muster.Faultf(muster.FaultInvalid, "node %s: its provider %s is not configured", n.ID, n.Offering.Provider)
	}
	return a.StartAgent(ctx, n.Instance)
}

// destroyAll ends every instance of this server: for one that takes everything with it.
func (s *Server) destroyAll() error {
	ctx, cancel := context.WithTimeout(context.Background(), destroyTime)
	defer cancel()
	cluster := s.state.Latest().Meta().Cluster
	if cluster == "" {
		return nil // never led: nothing was made
	}
	ps, err := s.providers(cluster)
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
