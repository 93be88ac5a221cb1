package oci

import (
	"os"
	"strconv"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/musterhq/muster/internal/agent/initbox"
)

// deviceMount is where the i-th file of the granted devices is found by the runtime program.
func (s *stage) deviceMount(i int) string { return s.at("device" + strconv.Itoa(i)) }

// bundle is where the container's configuration is. Hooks start there, and where the container has ids
// of its own, they are nobody on the node: then it must not be the sandbox's directory, which is
// closed to others.
func (s *stage) bundle() string {
	if d := s.c.Container.Devices; d != nil && len(d.Hooks) > 0 {
		return s.at("bundle")
	}
	return s.box
}

// deviceFiles are the paths on the node that its devices and volumes need.
func (s *stage) deviceFiles() (paths []string) {
	if d := s.c.Container.Devices; d != nil {
		for _, m := range d.Mounts {
			paths = append(paths, m.HostPath)
		}
		for _, h := range d.Hooks {
			paths = append(paths, h.Path)
		}
	}
	for _, m := range s.c.Container.Mounts {
		if m.Source != "" {
			paths = append(paths, m.Source)
		}
	}
	return paths
}

// bindDeviceFiles brings the files that belong to granted devices, as libraries of a driver, to where
// the container's root can take them from.
func (s *stage) bindDeviceFiles() error {
	if s.c.Container.Devices == nil {
		return nil
	}
	for i, m := range s.c.Container.Devices.Mounts {
		info, err := os.Stat(m.HostPath)
		if err != nil {
			return initbox.NodeFault("a file of its devices: %v", err)
		}
		if info.IsDir() {
			err = os.Mkdir(s.deviceMount(i), 0o755)
		} else {
			err = os.WriteFile(s.deviceMount(i), nil, 0o644)
		}
		if err != nil {
			return err
		}
		if err := unix.Mount(m.HostPath, s.deviceMount(i), "", unix.MS_BIND, ""); err != nil {
			return &os.PathError{Op: "bind", Path: m.HostPath, Err: err}
		}
	}
	return nil
}

// findDevices looks up the numbers of the granted devices. The node's /dev is covered after it.
func (s *stage) findDevices() error {
	if s.c.Container.Devices == nil {
		return nil
	}
	mode, root := os.FileMode(0o666), uint32(0)
	for _, n := range s.c.Container.Devices.Nodes {
		var st unix.Stat_t
		if err := unix.Stat(n.HostPath, &st); err != nil {
			return initbox.NodeFault("device %s of the node: %v", n.HostPath, err)
		}
		if st.Mode&unix.S_IFMT != unix.S_IFCHR {
			return initbox.NodeFault("device %s of the node is no character device", n.HostPath)
		}
		s.devices = append(s.devices, specs.LinuxDevice{
			Path: n.Path, Type: "c", Major: int64(unix.Major(st.Rdev)), Minor: int64(unix.Minor(st.Rdev)), FileMode: &mode, UID: &root, GID: &root,
		})
	}
	return nil
}

// addDevices makes granted devices part of the container's configuration. Programs that keep cgroups
// themselves allow exactly these, and the few that every container has.
func (s *stage) addDevices(c *specs.Spec) {
	d := s.c.Container.Devices
	if d == nil {
		return
	}
	c.Linux.Devices = s.devices
	if !s.r.program.leavesCgroups() && len(s.devices) > 0 {
		c.Linux.Resources = &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Access: "rwm"}}}
		for i := range s.devices {
			c.Linux.Resources.Devices = append(c.Linux.Resources.Devices, specs.LinuxDeviceCgroup{
				Allow: true, Type: "c", Major: &s.devices[i].Major, Minor: &s.devices[i].Minor, Access: d.Nodes[i].Access,
			})
		}
	}
	if len(d.Hooks) == 0 {
		return
	}
	c.Hooks = &specs.Hooks{}
	for _, h := range d.Hooks {
		hook := specs.Hook{Path: h.Path, Args: h.Args, Env: h.Env}
		if h.Seconds > 0 {
			hook.Timeout = &h.Seconds
		}
		to := map[string]*[]specs.Hook{
			// It is called at the same point, and the older word for it.
			"prestart":      &c.Hooks.CreateRuntime,
			"createRuntime": &c.Hooks.CreateRuntime, "createContainer": &c.Hooks.CreateContainer,
			"startContainer": &c.Hooks.StartContainer, "poststart": &c.Hooks.Poststart, "poststop": &c.Hooks.Poststop,
		}[h.Kind]
		if to != nil {
			*to = append(*to, hook)
		}
	}
}
