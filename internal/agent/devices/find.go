package devices

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"go.yaml.in/yaml/v3"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/musterhq/muster/internal/agent/contract"
)

// KindGPU is the kind of all devices whose CDI class is gpu, whoever makes them. Another device is
// of the kind that CDI calls it: vendor/class.
const KindGPU = "gpu"

// Device is one device of the node.
type Device struct {
	// Kind is KindGPU, or vendor/class.
	Kind string
	// Name is the qualified name in CDI, as nvidia.com/gpu=0; for one that was found by its driver the
	// same.
	Name string
	// Model, Driver and UUID are "" where they are not known. A part of a MIG device has its name in Model.
	Model, Driver, UUID string

	give contract.Devices
}

// Inventory is what was found on a node. Its devices are in the order in which grants count them,
// kind by kind.
type Inventory struct {
	Devices []Device
	// Problems are sentences about files that could not be used, for operators.
	Problems []string
}

// Find looks for the devices of the node whose file system is at root, "/" but for tests.
func Find(root string) *Inventory {
	v := &Inventory{}
	gpus := nvidiaGPUs(root)
	seen := map[string]bool{}
	for _, dir := range []string{"etc/cdi", "var/run/cdi", "run/cdi"} {
		paths, _ := filepath.Glob(filepath.Join(root, dir, "*")) // the pattern is well-formed
		for _, path := range paths {
			if ext := filepath.Ext(path); ext != ".json" && ext != ".yaml" {
				continue
			}
			// /var/run is /run on most systems.
			real, err := filepath.EvalSymlinks(path)
			if err != nil || seen[real] {
				continue
			}
			seen[real] = true
			if err := v.read(root, real, gpus); err != nil {
				v.Problems = append(v.Problems, fmt.Sprintf("devices of %s cannot be used: %v", strings.TrimPrefix(path, filepath.Clean(root)), err))
			}
		}
	}
	v.Devices = distinct(v.Devices)
	if !slices.ContainsFunc(v.Devices, func(d Device) bool { return d.Kind == KindGPU }) {
		v.Devices = append(v.Devices, byDriver(root, gpus)...)
	}
	return v
}

// read takes in one file of CDI.
func (v *Inventory) read(root, path string, gpus []nvidiaGPU) error {
	if err := trusted(path); err != nil {
		return err
	}
	spec, err := parse(path)
	if err != nil {
		return err
	}
	kind := spec.Kind
	vendor, class, _ := strings.Cut(kind, "/")
	switch {
	case vendor == "" || class == "":
		return fmt.Errorf("kind is %q, and not vendor/class", kind)
	case class == KindGPU:
		kind = KindGPU
	}
	for i := range spec.Devices {
		d := Device{Kind: kind, Name: spec.Kind + "=" + spec.Devices[i].Name}
		for _, e := range []*specs.ContainerEdits{&spec.ContainerEdits, &spec.Devices[i].ContainerEdits} {
			if err := d.edit(e); err != nil {
				return fmt.Errorf("%s: %w", d.Name, err)
			}
		}
		d.own(&spec.Devices[i].ContainerEdits, gpus)
		if strings.Contains(spec.Devices[i].Name, ":") && d.Model != "" {
			d.Model += " MIG " + spec.Devices[i].Name
		}
		v.Devices = append(v.Devices, d)
	}
	return nil
}

// parse reads a file of CDI, JSON or YAML. The library beside its types is not used: it panics at a
// class of one letter (v1.0.1), and checks nothing that edit does not.
func parse(path string) (*specs.Spec, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	var spec specs.Spec
	if err := yaml.NewDecoder(io.LimitReader(f, maxFile)).Decode(&spec); err != nil {
		return nil, err
	}
	for i := range spec.Devices {
		if spec.Devices[i].Name == "" {
			return nil, fmt.Errorf("devices[%d] has no name", i)
		}
	}
	return &spec, nil
}

// maxFile bounds a file of CDI. Those of a machine with 16 GPUs have some 100 KB.
const maxFile = 8 << 20

// trusted refuses a file that others than root and the agent can write: it names programs that the
// runtime program starts.
func trusted(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	own := st != nil && (st.Uid == 0 || int(st.Uid) == os.Geteuid() || st.Uid == nobody && !wholeIDs())
	if ok && !own {
		return fmt.Errorf("it belongs to user %d; only root's files are used", st.Uid)
	}
	if info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("others can write it (mode %04o)", info.Mode().Perm())
	}
	return nil
}

// nobody is the owner of files whose owner a user namespace does not have, as root's.
const nobody = 65534

// wholeIDs reports whether this process sees all users of the node: it is in no user namespace of its
// own, as that of an ordinary user's agent. In one, the directories are what keeps others from writing
// there: they are root's.
func wholeIDs() bool {
	b, err := os.ReadFile("/proc/self/uid_map")
	return err != nil || slices.Equal(strings.Fields(string(b)), []string{"0", "0", "4294967295"})
}

// edit adds what CDI wants of a container.
func (d *Device) edit(e *specs.ContainerEdits) error {
	d.give.Env = append(d.give.Env, e.Env...)
	for _, n := range e.DeviceNodes {
		if !strings.HasPrefix(filepath.Clean(n.Path), "/dev/") {
			return fmt.Errorf("device file %q is not below /dev", n.Path)
		}
		d.give.Nodes = append(d.give.Nodes, contract.DeviceNode{
			Path: filepath.Clean(n.Path), HostPath: cmp.Or(n.HostPath, n.Path), Access: cmp.Or(n.Permissions, "rwm"),
		})
	}
	for _, m := range e.Mounts {
		if m.Type != "" && m.Type != "bind" {
			return fmt.Errorf("mount %s is of type %s; only bind mounts are made", m.ContainerPath, m.Type)
		}
		d.give.Mounts = append(d.give.Mounts, contract.DeviceMount{Path: filepath.Clean(m.ContainerPath), HostPath: m.HostPath})
	}
	for _, h := range e.Hooks {
		hook := contract.DeviceHook{Kind: h.HookName, Path: h.Path, Args: h.Args, Env: h.Env}
		if h.Timeout != nil {
			hook.Seconds = *h.Timeout
		}
		d.give.Hooks = append(d.give.Hooks, hook)
	}
	return nil
}

// own finds what is known of the GPU whose device file is among the device's own.
func (d *Device) own(e *specs.ContainerEdits, gpus []nvidiaGPU) {
	for _, n := range e.DeviceNodes {
		for i := range gpus {
			if g := &gpus[i]; filepath.Clean(n.Path) == g.node() {
				d.Model, d.Driver, d.UUID = g.model, g.driver, g.uuid
				return
			}
		}
	}
}

// distinct leaves out other names of the same device, and names that stand for several ("all"), and
// sorts the rest: numbers count as numbers. Vendors' tools name a device by its number and by its UUID.
func distinct(all []Device) []Device {
	slices.SortStableFunc(all, func(a, b Device) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), byNumber(a.Name, b.Name))
	})
	var out []Device
	for i := range all {
		d := &all[i]
		_, name, _ := strings.Cut(d.Name, "=")
		if name == "all" {
			continue
		}
		same := func(o Device) bool {
			return o.Kind == d.Kind && slices.Equal(o.paths(), d.paths()) && len(d.give.Nodes) > 0
		}
		if !slices.ContainsFunc(out, same) {
			out = append(out, *d)
		}
	}
	return out
}

// paths are the device files on the node.
func (d *Device) paths() []string {
	out := make([]string, len(d.give.Nodes))
	for i, n := range d.give.Nodes {
		out[i] = n.HostPath
	}
	slices.Sort(out)
	return out
}

// byNumber compares names such as nvidia.com/gpu=10 and nvidia.com/gpu=2:1 by their numbers. Names
// without numbers come last.
func byNumber(a, b string) int {
	numbers := func(s string) []int {
		_, name, _ := strings.Cut(s, "=")
		var out []int
		for p := range strings.SplitSeq(name, ":") {
			n, err := strconv.Atoi(p)
			if err != nil {
				return nil
			}
			out = append(out, n)
		}
		return out
	}
	x, y := numbers(a), numbers(b)
	switch {
	case x == nil && y == nil:
		return strings.Compare(a, b)
	case x == nil:
		return 1
	case y == nil:
		return -1
	}
	return cmp.Or(slices.Compare(x, y), strings.Compare(a, b))
}

// Missing is a sentence about the first device that was found and is gone since, as a GPU that fell
// off its bus; "" if there is none.
func (v *Inventory) Missing() string {
	for i := range v.Devices {
		for _, n := range v.Devices[i].give.Nodes {
			if _, err := os.Stat(n.HostPath); errors.Is(err, fs.ErrNotExist) {
				return fmt.Sprintf("device %s is gone: %s does not exist any more", v.Devices[i].Name, n.HostPath)
			}
		}
	}
	return ""
}
