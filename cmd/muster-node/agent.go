package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/agent"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/destinations"
	"github.com/musterhq/muster/internal/agent/devices"
	"github.com/musterhq/muster/internal/agent/initbin"
	"github.com/musterhq/muster/internal/agent/journal"
	"github.com/musterhq/muster/internal/agent/process"
	"github.com/musterhq/muster/internal/agent/userns"
	"github.com/musterhq/muster/internal/outbound"
	"github.com/musterhq/muster/internal/version"
)

// brokenFile is where agents look for an operator's word that the host is broken.
const brokenFile = "/etc/muster/broken"

// agentFlags are the flags of muster-node agent.
type agentFlags struct {
	dir, node, init   string
	cgroup            string
	runtime           string
	images            string
	imageCache        string
	cpu, memory, disk string
	attributes        []string
	bootDelay         time.Duration
	replace, detached bool
	leaseEnd, broken  string
	metadata          string
	allow             []string
	volumes, writable []string
	refuseHoles       bool
	inputLimit        string
	outbound          string
	// inside is the descriptor of the connection to the process outside, in a user namespace.
	inside int
}

func agentCommand() *cobra.Command {
	var f agentFlags
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Run the agent until SIGTERM; sandboxes live on",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return runAgent(cmd, f) },
	}
	fs := cmd.Flags()
	fs.StringVar(&f.dir, "dir", "", "the agent's own directory (required)")
	fs.StringVar(&f.node, "node", "", "id of the node (required)")
	fs.StringVar(&f.cpu, "cpu", "", "cores that it offers, as 1.5")
	fs.StringVar(&f.memory, "memory", "", "memory that it offers, as 2GiB")
	fs.StringVar(&f.disk, "disk", "", "disk that it offers, as 10GiB")
	fs.StringArrayVar(&f.attributes, "attr", nil, "attribute of the node, as zone=a; may be repeated")
	fs.DurationVar(&f.bootDelay, "boot-delay", 0, "wait before answering: a simulated boot")
	fs.StringVar(&f.init, "init", "", "path of muster-init; default: the one inside this program, or beside it")
	fs.StringVar(&f.cgroup, "cgroup", "", "cgroup below which sandboxes get theirs, as muster/NODE; default: that one where this is root")
	fs.StringVar(&f.runtime, "oci-runtime", "", "program that makes containers, by name or path; none: no containers (default: crun, else runc)")
	fs.StringSliceVar(&f.allow, "allow-addresses", nil, "addresses and prefixes, as 127.0.0.1/32, from which inputs and images may come although they are loopback, link-local or cloud metadata addresses")
	fs.StringArrayVar(&f.volumes, "volume", nil, "directory that containers may have mounted read-only, as data=/srv/data; may be repeated")
	fs.StringArrayVar(&f.writable, "writable-volume", nil, "directory that containers may also write, as out=/srv/out; may be repeated")
	fs.BoolVar(&f.refuseHoles, "refuse-holes", false, "run no containers if crun or runc has known vulnerabilities")
	fs.StringVar(&f.inputLimit, "input-limit", "", "largest size of an input from a URL, as 4GiB (the default)")
	fs.StringVar(&f.outbound, "network", "", "file with the proxy and the certificate authorities that inputs and images are fetched with, as a server writes it (default: the environment variables HTTP_PROXY, HTTPS_PROXY and NO_PROXY)")
	fs.StringVar(&f.images, "images", "", "directory in which agents that come and go on this host have their caches of images (default: a cache in --dir)")
	fs.StringVar(&f.imageCache, "image-cache", "20GiB", "how much unpacked images may take")
	fs.StringVar(&f.leaseEnd, "lease-end", "", "what to do when no server has spoken to the node for its lease: self ends the agent with all that it runs, anything else is a command for sh that ends the machine (default: leases are not heeded)")
	fs.StringVar(&f.broken, "broken", brokenFile, "file by which an operator or a script marks this host as broken: if it exists, the node gets no more work and is destroyed; its first line is the reason (empty: only the file broken in --dir)")
	fs.StringVar(&f.metadata, "metadata", "", "kind of metadata service that the cloud has for this machine: ec2, gce or azure; the agent reads there whether the cloud will take or restart it (default: none is asked)")
	fs.BoolVar(&f.replace, "replace", false, "take over from an agent that runs in the directory; its sandboxes live on")
	fs.IntVar(&f.inside, "inside", 0, "descriptor of the connection to the process outside of the user namespace that this one is in")
	if err := fs.MarkHidden("inside"); err != nil {
		panic(err)
	}
	fs.BoolVar(&f.detached, "detached", false, "log to agent.log in the directory instead of standard error")
	for _, name := range []string{"dir", "node"} {
		if err := cmd.MarkFlagRequired(name); err != nil {
			panic(err)
		}
	}
	return cmd
}

func runAgent(cmd *cobra.Command, f agentFlags) error {
	dir, err := filepath.Abs(f.dir)
	if err != nil {
		return err
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return fmt.Errorf("--dir %s: no such directory; make it first", dir)
	}
	var user userMode
	if f.inside > 0 {
		if user, err = f.joinInside(dir); err != nil {
			return err
		}
	} else if os.Geteuid() != 0 && f.runtime != "none" {
		if user.refusal = userns.Refusal(cmd.Context(), f.runtime); user.refusal == "" {
			h, err := openHolder(cmd.Context(), dir)
			if err == nil {
				return runOuter(cmd.Context(), dir, h)
			}
			user.refusal = err.Error()
		}
	}
	temp := filepath.Join(dir, journal.TempName)
	if err := os.Mkdir(temp, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := os.Setenv("TMPDIR", temp); err != nil {
		return err
	}
	capacity, err := f.capacity()
	if err != nil {
		return err
	}
	attributes, err := parseAttributes(f.attributes)
	if err != nil {
		return err
	}
	// What only the machine itself knows; the operator's word wins.
	for name, value := range map[string]string{"os": runtime.GOOS, "arch": runtime.GOARCH} {
		if _, given := attributes[name]; !given {
			attributes[name] = value
		}
	}
	if err := useNetwork(f.outbound); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if f.detached {
		w, err := openLog(filepath.Join(dir, logName))
		if err != nil {
			return err
		}
		defer func() { _ = w.Close() }()
		log = slog.New(slog.NewTextHandler(w, nil))
	}
	if f.cgroup == "" && os.Geteuid() == 0 {
		f.cgroup = "muster/" + f.node
	}
	initPath, err := filepath.Abs(f.init)
	if f.init == "" {
		initPath, err = initbin.Place(filepath.Join(dir, "bin"))
	}
	if err != nil {
		return err
	}
	rt, err := process.New(user.process(process.Config{InitPath: initPath, CgroupParent: f.cgroup, Log: log}))
	if err != nil {
		return err
	}
	config := agent.Config{
		Dir: dir, Node: muster.NodeID(f.node), Capacity: capacity, Attributes: attributes,
		Runtimes: []contract.Runtime{rt}, Logger: log, Version: version.String(),
		Replace: f.replace, BootDelay: f.bootDelay,
	}
	config.Devices = devices.Find("/")
	config.LeaseEnd, config.Broken, config.Metadata = f.endOfLease(dir, user), f.broken, f.metadata
	if config.Destinations, err = destinations.Parse(f.allow); err != nil {
		return fmt.Errorf("--allow-addresses: %w", err)
	}
	if config.Volumes, err = f.allowedVolumes(); err != nil {
		return err
	}
	if f.inputLimit != "" {
		size, err := api.ParseSize(f.inputLimit)
		if err != nil {
			return fmt.Errorf("--input-limit: %w", err)
		}
		config.InputLimit = size.Bytes()
	}
	if err := f.containers(&config, dir, initPath, log, user); err != nil {
		return err
	}
	a, err := agent.New(config)
	if err != nil {
		return err
	}
	ctx, cancel := user.context(cmd.Context())
	defer cancel()
	return a.Run(ctx)
}

// useNetwork makes this process reach what is outside as the file says; without one as its
// environment does.
func useNetwork(path string) error {
	var settings outbound.Settings
	if path != "" {
		var err error
		if settings, err = outbound.Read(path); err != nil {
			return fmt.Errorf("--network: %w", err)
		}
	}
	if err := settings.Use(); err != nil {
		return fmt.Errorf("--network: %w", err)
	}
	return nil
}

func (f agentFlags) capacity() (r muster.Resources, err error) {
	if f.cpu != "" {
		cores, err := strconv.ParseFloat(f.cpu, 64)
		if err != nil || cores < 0 || cores > 1e6 || math.IsNaN(cores) {
			return r, fmt.Errorf("--cpu %q is not a number of cores", f.cpu)
		}
		r.CPU = muster.MilliCPU(math.Round(cores * 1000))
	}
	for _, x := range []struct {
		name, value string
		to          *muster.Bytes
	}{{"--memory", f.memory, &r.Memory}, {"--disk", f.disk, &r.Disk}} {
		if x.value == "" {
			continue
		}
		size, err := api.ParseSize(x.value)
		if err != nil {
			return r, fmt.Errorf("%s: %w", x.name, err)
		}
		*x.to = size.Bytes()
	}
	return r, nil
}

func parseAttributes(list []string) (map[string]string, error) {
	m := make(map[string]string, len(list))
	for _, s := range list {
		k, v, ok := strings.Cut(s, "=")
		if !ok || k == "" {
			return nil, fmt.Errorf("--attr %q is not name=value", s)
		}
		m[k] = v
	}
	return m, nil
}

// allowedVolumes are the directories that containers may have mounted, by name.
func (f agentFlags) allowedVolumes() (map[string]agent.Volume, error) {
	all := map[string]agent.Volume{}
	for writable, list := range map[bool][]string{false: f.volumes, true: f.writable} {
		for _, s := range list {
			name, path, _ := strings.Cut(s, "=")
			if name == "" || !filepath.IsAbs(path) {
				return nil, fmt.Errorf("--volume %q is not a name and an absolute path, as data=/srv/data", s)
			}
			all[name] = agent.Volume{Path: path, Writable: writable}
		}
	}
	return all, nil
}
