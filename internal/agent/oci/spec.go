package oci

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/initbox"
)

// initAt is where the container finds its init. Below /dev, which is never part of an image.
const initAt = "/dev/.muster/init"

// sharedMemory is the size of /dev/shm, counted in the sandbox's memory.
const sharedMemory = "size=65536k"

// writeSpec writes the container's configuration.
func (s *stage) writeSpec() error {
	b, err := json.Marshal(s.spec())
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.bundle(), 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(s.bundle(), specName), b, 0o600)
}

func (s *stage) spec() *specs.Spec {
	c := &specs.Spec{Version: "1.0.2", Root: &specs.Root{Path: s.at("root")}, Hostname: s.hostname(), Mounts: s.mounts(), Linux: &specs.Linux{}}
	c.Process = &specs.Process{
		// With a HOME crun does not look for one in the image's /etc/passwd. Nothing of it reaches the command.
		Args: []string{initAt, s.name}, Env: append(initbox.InitEnv(), "HOME=/"), Cwd: "/", NoNewPrivileges: true,
		Capabilities: &specs.LinuxCapabilities{Bounding: initCapabilities, Effective: initCapabilities, Permitted: initCapabilities},
		OOMScoreAdj:  new(int), // unset, it would be that of the agent
	}
	l := c.Linux
	l.MaskedPaths, l.ReadonlyPaths, l.Seccomp = s.r.masked, s.r.readonly, s.r.seccomp
	if s.r.seccomp != nil && s.r.filter != "" {
		// Whether it took the hint is looked at when the container is there, see born.
		l.Seccomp, c.Annotations = nil, map[string]string{"run.oci.seccomp_bpf_data": s.r.filter}
	}
	kinds := []specs.LinuxNamespaceType{specs.PIDNamespace, specs.IPCNamespace, specs.UTSNamespace, specs.MountNamespace}
	if s.r.groups.Unified() {
		kinds = append(kinds, specs.CgroupNamespace)
	}
	if s.newNetwork() {
		kinds = append(kinds, specs.NetworkNamespace)
		// A server needs no rights to listen inside.
		l.Sysctl = map[string]string{"net.ipv4.ip_unprivileged_port_start": "0"}
	}
	if s.ids.base > 0 {
		kinds = append(kinds, specs.UserNamespace)
		m := []specs.LinuxIDMapping{{ContainerID: 0, HostID: uint32(s.ids.base), Size: idRange}}
		l.UIDMappings, l.GIDMappings = m, m
	}
	for _, k := range kinds {
		l.Namespaces = append(l.Namespaces, specs.LinuxNamespace{Type: k})
	}
	if !s.r.program.leavesCgroups() {
		l.CgroupsPath = s.r.groups.Path(s.name)
	}
	s.addDevices(c)
	return c
}

// newNetwork: the container gets a network namespace that has nothing but a loopback.
func (s *stage) newNetwork() bool {
	return s.c.Container.Network != nil && s.c.Container.Network.Namespace == ""
}

// ownSys: the kernel lets a container mount /sys only if its network namespace belongs to its user namespace.
// Else we mount it for it.
func (s *stage) ownSys() bool { return s.ids.base > 0 && !s.newNetwork() }

func (s *stage) mounts() []specs.Mount {
	harmless := []string{"nosuid", "noexec", "nodev"}
	with := func(options ...string) []string { return append(options, harmless...) }
	mount := func(at, kind, source string, options []string) specs.Mount {
		return specs.Mount{Destination: at, Type: kind, Source: source, Options: options}
	}
	all := []specs.Mount{
		mount("/proc", "proc", "proc", harmless),
		mount("/dev", "tmpfs", "tmpfs", []string{"nosuid", "strictatime", "mode=755", "size=65536k"}),
		mount("/dev/pts", "devpts", "devpts", s.terminals()),
		mount("/dev/shm", "tmpfs", "shm", with("mode=1777", sharedMemory)),
		mount("/dev/mqueue", "mqueue", "mqueue", harmless),
	}
	if s.ownSys() {
		all = append(all, mount("/sys", "bind", s.at("sys"), with("bind", "ro")))
	} else {
		all = append(all, mount("/sys", "sysfs", "sysfs", with("ro")))
	}
	if s.r.groups.Unified() {
		all = append(all, mount("/sys/fs/cgroup", "cgroup", "cgroup", with("ro")))
	}
	for i, path := range s.c.Container.Volumes {
		all = append(all, mount(path, "bind", s.volume(i), []string{"bind", "nosuid", "nodev"}))
	}
	if s.c.Container.Shared != "" {
		all = append(all, mount(s.c.Container.SharedAt, "bind", s.shared, []string{"bind", "nosuid", "nodev"}))
	}
	all = append(all, s.mountsOf()...)
	if d := s.c.Container.Devices; d != nil {
		for i := range d.Mounts {
			all = append(all, mount(d.Mounts[i].Path, "bind", s.deviceMount(i), []string{"bind", "ro", "nosuid", "nodev"}))
		}
	}
	for _, name := range ownFiles {
		all = append(all, mount("/etc/"+name, "bind", s.at(name), []string{"bind", "nosuid", "nodev", "noexec"}))
	}
	return append(all, mount(initAt, "bind", s.at("init"), []string{"bind", "ro", "nosuid", "nodev"}))
}

// terminals are the options of the file system of terminals: they are of the group tty, if there is such a group.
func (s *stage) terminals() []string {
	options := []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"}
	if s.r.rootless() && s.r.config.UserIDs <= 5 {
		return options
	}
	return append(options, "gid=5")
}

// ownFiles are those in /etc that a container has of its own.
var ownFiles = []string{"resolv.conf", "hosts", "hostname"}

func (s *stage) hostname() string {
	name := s.c.Container.Hostname
	if name == "" {
		name = s.name
	}
	if len(name) > 63 {
		name = strings.TrimRight(name[:63], "-.")
	}
	return name
}

// texts are the contents of ownFiles.
func (s *stage) texts() map[string]string {
	host := s.hostname()
	hosts := "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"
	resolv := ""
	named := false
	if n := s.c.Container.Network; n != nil {
		for _, l := range n.Hosts {
			hosts += l + "\n"
			named = named || strings.Contains(l, host)
		}
		for _, l := range n.DNS {
			resolv += l + "\n"
		}
	} else if b, err := os.ReadFile("/etc/resolv.conf"); err == nil && len(b) < stageFile {
		resolv = string(b)
	}
	if !named {
		hosts += fmt.Sprintf("127.0.1.1\t%s\n", host)
	}
	return map[string]string{"resolv.conf": resolv, "hosts": hosts, "hostname": host + "\n"}
}

// validate says what is wrong with the container part of a configuration.
func validate(c *contract.SandboxConfig) error {
	n := c.Container
	for _, l := range n.Image.Layers {
		if !filepath.IsLocal(l) || strings.ContainsAny(l, ":,\\") {
			return initbox.NodeFault("image %s: layer %q cannot be named in a mount", n.Image.Ref, l)
		}
	}
	if n.Shared != "" && (!filepath.IsAbs(n.Shared) || !inside(n.SharedAt)) {
		return initbox.NodeFault("shared directory %q at %q: want absolute paths", n.Shared, n.SharedAt)
	}
	if n.Devices != nil {
		for _, m := range n.Devices.Mounts {
			if !inside(m.Path) || !filepath.IsAbs(m.HostPath) {
				return initbox.NodeFault("a device's file %s cannot be mounted at %q: want absolute paths, not in /proc, /sys or /dev", m.HostPath, m.Path)
			}
		}
	}
	for _, m := range n.Mounts {
		if !inside(m.Path) || m.Source != "" && !filepath.IsAbs(m.Source) {
			return initbox.UserFault(muster.ReasonSpec, "volume at %q: want an absolute path, not /proc, /sys, /dev or below one of them", m.Path)
		}
	}
	for _, v := range n.Volumes {
		if !inside(v) {
			return initbox.UserFault(muster.ReasonSpec, "volume %q of image %s: want an absolute path, not /proc, /sys, /dev or below one of them", v, n.Image.Ref)
		}
	}
	return nil
}

// inside: a place in a container where something of its own may be mounted.
func inside(path string) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(filepath.Clean(path), "/"), "/")
	switch first {
	case "", "proc", "sys", "dev":
		return false
	}
	return filepath.IsAbs(path)
}
