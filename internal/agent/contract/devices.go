package contract

// Devices is what a container gets of the node's devices, beyond the few that every container has.
type Devices struct {
	Nodes  []DeviceNode
	Mounts []DeviceMount
	// Env are variables as NAME=VALUE. They count over those of image and job.
	Env []string
	// Hooks are programs of the node that the runtime program starts, as the device's vendor says.
	Hooks []DeviceHook
}

// DeviceNode is a device file: Path inside, HostPath on the node. Every user inside may use it.
type DeviceNode struct {
	Path, HostPath string
	// Access is some of "rwm", as in a cgroup's rule.
	Access string
}

// DeviceMount is a file or directory of the node that is seen inside at Path, read-only.
type DeviceMount struct{ Path, HostPath string }

// DeviceHook is a hook in the words of OCI's runtime specification.
type DeviceHook struct {
	// Kind is prestart, createRuntime, createContainer, startContainer, poststart or poststop.
	Kind, Path string
	Args, Env  []string
	// Seconds bounds it; 0: it has no limit.
	Seconds int
}
