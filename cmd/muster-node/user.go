package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster/internal/agent/cgroup"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/initbox"
	"github.com/musterhq/muster/internal/agent/journal"
	"github.com/musterhq/muster/internal/agent/network"
	"github.com/musterhq/muster/internal/agent/oci"
	"github.com/musterhq/muster/internal/agent/process"
	"github.com/musterhq/muster/internal/agent/rootless"
	"github.com/musterhq/muster/internal/agent/userns"
)

// insideFD is the descriptor that helpers in the user namespace get their connection as.
const insideFD = 3

// userMode is how the agent of an ordinary user differs from that of root. Its zero value is root's.
type userMode struct {
	// refusal is why it makes no containers, and is not in a user namespace.
	refusal string
	// inner is the connection to the process outside of the user namespace; nil: this one is not in
	// any.
	inner  *rootless.Inner
	holder *userns.Holder
	node   string
}

// exitError is the exit code of the agent in its user namespace.
type exitError int

func (e exitError) Error() string { return "exit status " + strconv.Itoa(int(e)) }

// openHolder finds or starts the process that keeps the namespaces of the agent of a directory.
func openHolder(ctx context.Context, dir string) (*userns.Holder, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	delegated, err := cgroup.Delegated()
	if err == nil {
		err = cgroup.Vacuum(delegated)
	}
	if err != nil {
		delegated = "" // the agent says why
	}
	return userns.Open(ctx, dir, self, delegated)
}

// runOuter runs the agent in a user namespace, and stays outside until it ends.
func runOuter(ctx context.Context, dir string, h *userns.Holder) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if h.Lost {
		if err := endContainers(ctx, dir); err != nil {
			return err
		}
	}
	o := &rootless.Outer{Program: self, Args: append(os.Args[1:len(os.Args):len(os.Args)], "--inside", strconv.Itoa(insideFD)), Holder: h}
	code, err := o.Run(ctx)
	if err == nil && code != 0 {
		err = exitError(code)
	}
	return err
}

// endContainers ends the containers of an agent whose user namespace is gone: nobody can enter their
// namespaces any more, and their networks lead nowhere. The agent reports them as ended.
func endContainers(ctx context.Context, dir string) error {
	dirs, err := journal.SandboxDirs(dir)
	if err != nil {
		return err
	}
	for _, d := range dirs {
		record, err := initbox.Read(d)
		if err != nil || record.Sandbox == nil || record.Sandbox.Runtime != oci.Name {
			continue
		}
		if err := initbox.KillAll(ctx, d); err != nil {
			return err
		}
	}
	return nil
}

// joinInside is for the agent in its user namespace.
func (f agentFlags) joinInside(dir string) (userMode, error) {
	h, err := userns.Current(dir)
	if err != nil {
		return userMode{}, err
	}
	inner, err := rootless.Join(f.inside)
	return userMode{inner: inner, holder: h, node: f.node}, err
}

// context is one that also ends with the process outside.
func (u userMode) context(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(parent)
	if u.inner != nil {
		go func() {
			<-u.inner.Gone()
			cancel()
		}()
	}
	return ctx, cancel
}

// ids is how many there are in the user namespace; 0: this process is in none of its own.
func (u userMode) ids() int {
	if u.inner == nil {
		return 0
	}
	return u.holder.IDs.Count
}

// groups opens the cgroups below the one that was delegated.
func (u userMode) groups() (*cgroup.Groups, []string) {
	if u.holder.Cgroup != "" {
		return cgroup.OpenBelow(u.holder.Cgroup, groupOf(u.node))
	}
	_, err := cgroup.Delegated()
	return nil, []string{fmt.Sprintf("%s%v", cgroup.Unlimited, err)}
}

func groupOf(node string) string { return "muster/" + node }

func (u userMode) process(c process.Config) process.Config {
	if u.inner != nil {
		c.CgroupParent, c.Groups, c.Outside = "", u.groups, u.inner
	}
	return c
}

func (u userMode) oci(c oci.Config) oci.Config {
	c.Refusal = u.refusal
	if u.inner != nil {
		c.CgroupParent, c.IDBase, c.Groups = "", 0, u.groups
		c.UserIDs, c.UserWhy = u.holder.IDs.Count, u.holder.IDs.Why
	}
	return c
}

func (u userMode) networks(dir string, log *slog.Logger) (contract.Networks, error) {
	if u.inner == nil {
		return network.NewAgent(network.Config{Dir: filepath.Join(dir, journal.NetworksName), Name: network.Name(dir), Logger: log})
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	args := []string{rootless.NetworksCommand, "--dir", dir}
	for _, a := range hostAddresses() {
		args = append(args, "--never", a.String())
	}
	return &rootless.Networks{Program: self, Args: args, Namespace: u.holder.Namespace("net"), Why: u.holder.Uplink.Why}, nil
}

// hostAddresses are those of the host's own network. From the network of sandboxes they look like
// those of any other host.
func hostAddresses() (all []netip.Addr) {
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() && !p.Addr().IsLoopback() {
			all = append(all, p.Addr())
		}
	}
	return all
}

// holdCommand is the process that keeps the namespaces of an agent.
func holdCommand() *cobra.Command {
	return &cobra.Command{
		Use:    userns.HoldCommand + " DIR",
		Short:  "Keep the user namespace of the agent of a directory",
		Args:   cobra.ExactArgs(1),
		Hidden: true,
		RunE: func(*cobra.Command, []string) error {
			signal.Reset(syscall.SIGTERM)
			signal.Ignore(syscall.SIGINT, syscall.SIGHUP)
			select {}
		},
	}
}

// networksCommand is the process that makes the networks of an agent in a user namespace.
func networksCommand() *cobra.Command {
	var dir string
	var never []string
	cmd := &cobra.Command{
		Use:    rootless.NetworksCommand,
		Short:  "Make the networks of an agent's containers",
		Args:   cobra.NoArgs,
		Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c := network.Config{
				Dir: filepath.Join(dir, journal.NetworksName), Name: network.Name(dir), Resolver: netip.MustParseAddr(userns.Resolver),
				Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
			}
			for _, text := range never {
				a, err := netip.ParseAddr(text)
				if err != nil {
					return fmt.Errorf("--never: %w", err)
				}
				c.Never = append(c.Never, netip.PrefixFrom(a, a.BitLen()))
			}
			n, err := network.NewAgent(c)
			if err != nil {
				return err
			}
			return rootless.ServeNetworks(cmd.Context(), insideFD, n)
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "the agent's directory")
	cmd.Flags().StringArrayVar(&never, "never", nil, "address that no container reaches; may be repeated")
	return cmd
}
