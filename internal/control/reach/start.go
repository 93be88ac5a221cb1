package reach

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/remote"
	"github.com/musterhq/muster/internal/state"
)

const (
	// probeTimeout bounds a boot probe without a timeout of its own.
	probeTimeout = 30 * time.Second
	// startTimeout bounds muster-node start, clearTimeout muster-node clear.
	startTimeout, clearTimeout = time.Minute, 2 * time.Minute
	// maxStderr bounds the part of a command's stderr in an error, in bytes.
	maxStderr = 1 << 10
	// Exit statuses of muster-node start: the node was cleared from the host, or the host is
	// another cluster's. See package host.
	exitCleared, exitTaken = 66, 69
)

// StartAgent makes sure that an agent of this build runs on the node: it runs the boot probe, puts
// muster-node there, and starts the agent if it does not run. It may be repeated after any failure.
// Faults: FaultNotFound, the instance does not exist any more; FaultAuth and FaultInvalid, an
// operator has to act; after others the caller may try again.
func (r *Reach) StartAgent(ctx context.Context, n *state.Node) error {
	p := r.cfg.Provider(n.Offering.Provider)
	if s, ok := cloud.As[cloud.AgentStarter](p); ok {
		return s.StartAgent(ctx, n.Instance)
	}
	c, err := r.conn(ctx, n, p)
	if err != nil {
		return err
	}
	// A node that has served has passed its probe.
	if n.Joined == 0 {
		if err := r.probe(ctx, c, n); err != nil {
			return err
		}
	}
	r.mu.Lock()
	h := r.hosts[n.ID]
	if h == nil {
		r.mu.Unlock()
		return errLeft(n.ID)
	}
	access, dir := h.access, h.dir()
	r.mu.Unlock()
	if err := r.rekey(ctx, c, n); err != nil {
		return err
	}
	program, err := r.put(ctx, c, dir, n.Offering.Attributes[muster.AttributeArch])
	if err != nil {
		return err
	}
	// From here on the host's sockets can be reached through the program, where sshd forbids
	// forwarding.
	c.SetProgram(program)
	r.mu.Lock()
	h.program = program
	r.mu.Unlock()
	start := remote.Command{Args: []string{program, "start", "--base", dir, "--node", string(n.ID), "--cluster", r.cfg.Cluster()}, Root: true, Limit: startTimeout}
	if r.cfg.Network != nil {
		settings, err := r.cfg.Network(n)
		if err != nil {
			return err
		}
		// They may have a password, which must not be in a command line.
		if len(settings) > 0 {
			start.Args, start.Stdin = append(start.Args, "--network"), bytes.NewReader(settings)
		}
	}
	start.Args = append(append(start.Args, "--"), r.agentArgs(n, access, dir)...)
	result, err := c.Run(ctx, start)
	if err != nil {
		return fmt.Errorf("start its agent: %w", err)
	}
	if result.Exit != 0 {
		// The exit status says why it did not start; any other may pass.
		kind := muster.FaultUnavailable
		switch result.Exit {
		case exitCleared:
			kind = muster.FaultNotFound
		case exitTaken:
			kind = muster.FaultConflict
		}
		return muster.Faultf(kind, "host %s: %s", c.Address(), failure(result))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	h.prepared = true
	return nil
}

// probe runs the boot probe of a node that has not served yet, unless it has passed already. A
// failure is FaultUnavailable: the probe is tried again, since the machine may still be booting.
func (r *Reach) probe(ctx context.Context, c *remote.Conn, n *state.Node) error {
	if r.cfg.Probe == nil {
		return nil
	}
	p := r.cfg.Probe(n)
	if p.Command == "" || r.isPrepared(n.ID) {
		return nil
	}
	limit := cmp.Or(p.Timeout, probeTimeout)
	result, err := c.Run(ctx, remote.Command{Args: []string{"sh", "-c", p.Command}, Limit: limit})
	switch {
	case muster.IsKind(err, muster.FaultAmbiguous):
		// The limit is over.
		return muster.Faultf(muster.FaultUnavailable, "boot probe %q did not end within %s", p.Command, limit)
	case err != nil:
		return fmt.Errorf("boot probe: %w", err)
	case result.Exit != 0:
		return muster.Faultf(muster.FaultUnavailable, "boot probe %q: %s", p.Command, failure(result))
	}
	return nil
}

// failure describes how a command failed, with the end of its stderr.
func failure(r remote.Result) string {
	text := strings.ToValidUTF8(strings.TrimSpace(string(r.Stderr)), "?")
	if len(text) > maxStderr {
		text = "…" + strings.ToValidUTF8(text[len(text)-maxStderr:], "")
	}
	how := "exit status " + strconv.Itoa(r.Exit)
	if r.Signal != "" {
		how = "killed by SIG" + r.Signal
	}
	if text == "" {
		return how
	}
	return how + ": " + text
}

// HasProgram returns an error if there is no muster-node here for hosts of an architecture.
func (r *Reach) HasProgram(arch string) error {
	_, err := r.cfg.Programs.Find(arch, DefaultDir)
	return err
}

// wrongArch returns an error if a host has another architecture than its offering says: jobs would be
// placed there whose images cannot run. Names of an operator's own are no architectures.
func wrongArch(host, offered string) error {
	known := []string{"amd64", "arm64"}
	if host == offered || !slices.Contains(known, host) || !slices.Contains(known, offered) {
		return nil
	}
	return muster.Faultf(muster.FaultInvalid, "it is %s, and its offering says %s: correct the architecture of the offering, or the image that it boots", host, offered)
}

// put makes sure that muster-node for the host's architecture is there, and returns its path. offered
// is the architecture that its offering says; empty: none.
func (r *Reach) put(ctx context.Context, c *remote.Conn, dir, offered string) (string, error) {
	facts, err := c.Probe(ctx)
	if err != nil {
		return "", err
	}
	if !facts.Root {
		return "", muster.Faultf(muster.FaultAuth, "host %s: %s is not root and may not use sudo without a password: give it NOPASSWD in sudoers, or log in as root", c.Address(), c.User())
	}
	if err := wrongArch(facts.Arch, offered); err != nil {
		return "", fmt.Errorf("host %s: %w", c.Address(), err)
	}
	file, err := r.cfg.Programs.Find(facts.Arch, dir)
	if err != nil {
		return "", fmt.Errorf("host %s: %w", c.Address(), err)
	}
	if there, err := c.Has(ctx, file); err == nil && there {
		return file.Path, nil
	}
	to := c
	// The file is large, so it gets a second connection. Without one it goes over the first.
	if bulk, err := c.Bulk(ctx); err == nil {
		to = bulk
	}
	put, err := to.Put(ctx, file)
	if err != nil {
		return "", err
	}
	if put {
		r.log.Info("muster-node put", "host", c.Address(), "path", file.Path, "bytes", file.Size)
	}
	return file.Path, nil
}

// agentArgs returns the arguments of muster-node agent. They are always in the same order, so that
// equal configurations give equal command lines.
func (r *Reach) agentArgs(n *state.Node, a cloud.Access, dir string) []string {
	o := &n.Offering
	args := []string{"--cpu", o.Capacity.CPU.String(), "--memory", fmt.Sprint(int64(o.Capacity.Memory)), "--disk", fmt.Sprint(int64(o.Capacity.Disk)),
		"--images", dir + "/images"}
	if a.Shutdown != "" {
		args = append(args, "--lease-end", a.Shutdown)
	}
	if r.cfg.AgentArgs != nil {
		args = append(args, r.cfg.AgentArgs(n)...)
	}
	names := make([]string, 0, len(o.Attributes))
	for name := range o.Attributes {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		args = append(args, "--attr", name+"="+o.Attributes[name])
	}
	return args
}

// once opens a separate connection, for work on a host that is no node.
func (r *Reach) once(ctx context.Context, a cloud.Access) (*remote.Conn, error) {
	config, err := r.config(a, "")
	if err != nil {
		return nil, err
	}
	if a.Jump != nil {
		if config.Through, err = r.throughOwn(a); err != nil {
			return nil, err
		}
	}
	return remote.Dial(ctx, config)
}

// The scripts are on one line and without backslashes, so that any login shell passes them on
// unchanged.
const (
	// nothingScript ends with exitNothing if the host has nothing of the node and nothing of it can
	// be about to start. The program is put before anything is started, so a host without it has
	// nothing.
	nothingScript = `test -e "$1/nodes/$2" && exit 0; ls "$1"/bin/muster-node-* >/dev/null 2>&1 && exit 0; exit 3`
	// measureScript prints the cores, the memory in KiB, and the free disk in KiB below the first
	// existing directory above $1.
	measureScript = `d="$1"; while ! test -d "$d"; do d=$(dirname "$d"); done; echo "muster-measure $(nproc) $(grep MemTotal: /proc/meminfo | tr -dc 0-9) $(df -Pk "$d" | tail -n 1 | tr -s " " | cut -d " " -f 4)"`
	exitNothing   = 3
)

// Clear ends a node's agent on a host, with all that it runs, and deletes what it has left. It may
// be repeated. FaultUnavailable means that the host cannot be reached now.
func (r *Reach) Clear(ctx context.Context, a cloud.Access, node muster.NodeID) error {
	c, err := r.once(ctx, a)
	if err != nil {
		return err
	}
	defer c.Close()
	dir := cmp.Or(a.Dir, DefaultDir)
	look, err := c.Run(ctx, remote.Command{Script: nothingScript, Purpose: "look for what the node left", Args: []string{dir, string(node)}, Root: true})
	if err != nil || look.Exit == exitNothing {
		return err
	}
	program, err := r.put(ctx, c, dir, "")
	if err != nil {
		return err
	}
	result, err := c.Run(ctx, remote.Command{Args: []string{program, "clear", "--base", dir, "--node", string(node)}, Root: true, Limit: clearTimeout})
	if err != nil {
		return err
	}
	if result.Exit != 0 {
		return muster.Faultf(muster.FaultTransient, "host %s: %s", c.Address(), failure(result))
	}
	return nil
}

// Measure returns what a host has: its cores, its memory, and the free disk below Muster's
// directory. The string is its architecture.
func (r *Reach) Measure(ctx context.Context, a cloud.Access) (muster.Resources, string, error) {
	c, err := r.once(ctx, a)
	if err != nil {
		return muster.Resources{}, "", err
	}
	defer c.Close()
	facts, err := c.Probe(ctx)
	if err != nil {
		return muster.Resources{}, "", err
	}
	result, err := c.Run(ctx, remote.Command{Script: measureScript, Purpose: "measure the host", Args: []string{cmp.Or(a.Dir, DefaultDir)}})
	if err != nil {
		return muster.Resources{}, "", err
	}
	// The login shell may print lines of its own, so the result is found by its first word.
	for line := range strings.Lines(string(result.Stdout)) {
		var cores, memory, disk int64
		if n, _ := fmt.Sscanf(line, "muster-measure %d %d %d", &cores, &memory, &disk); n == 3 && cores > 0 && memory > 0 {
			return muster.Resources{CPU: muster.MilliCPU(cores * 1000), Memory: muster.Bytes(memory << 10), Disk: muster.Bytes(disk << 10)}, facts.Arch, nil
		}
	}
	return muster.Resources{}, "", muster.Faultf(muster.FaultInvalid, "host %s: what it has cannot be measured: %s", c.Address(), failure(result))
}
