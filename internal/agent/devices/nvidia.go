package devices

import (
	"bytes"
	"debug/elf"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/musterhq/muster/internal/agent/contract"
)

// nvidiaGPU is what NVIDIA's kernel driver says of one GPU, in
// /proc/driver/nvidia/gpus/*/information.
type nvidiaGPU struct {
	minor               int
	model, uuid, driver string
}

// node is its device file.
func (g *nvidiaGPU) node() string { return "/dev/nvidia" + strconv.Itoa(g.minor) }

// nvidiaGPUs are those that the driver knows, by their number. None without a driver.
func nvidiaGPUs(root string) []nvidiaGPU {
	driver := ""
	if b, err := os.ReadFile(filepath.Join(root, "proc/driver/nvidia/version")); err == nil {
		driver = versionIn(string(b))
	}
	paths, _ := filepath.Glob(filepath.Join(root, "proc/driver/nvidia/gpus/*/information")) // the pattern is well-formed
	var out []nvidiaGPU
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		g := nvidiaGPU{minor: -1, driver: driver}
		for line := range bytes.Lines(b) {
			key, value, _ := strings.Cut(string(line), ":")
			switch value = strings.TrimSpace(value); strings.TrimSpace(key) {
			case "Model":
				g.model = strings.TrimPrefix(value, "NVIDIA ")
			case "GPU UUID":
				g.uuid = value
			case "Device Minor":
				if n, err := strconv.Atoi(value); err == nil {
					g.minor = n
				}
			}
		}
		if g.minor >= 0 {
			out = append(out, g)
		}
	}
	slices.SortFunc(out, func(a, b nvidiaGPU) int { return a.minor - b.minor })
	return out
}

// versionIn is the driver's version in the text of /proc/driver/nvidia/version: the first word that
// is numbers with dots between, behind the name of the module.
func versionIn(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	for word := range strings.FieldsSeq(line) {
		if strings.Contains(word, ".") && strings.Trim(word, "0123456789.") == "" {
			return word
		}
	}
	return ""
}

// Where a container finds the driver's libraries and programs: images of CUDA look there.
const (
	librariesAt = "/usr/local/nvidia/lib64"
	programsAt  = "/usr/local/nvidia/bin"
)

// libraryNames are the beginnings of the names of the driver's libraries that programs of users need:
// CUDA, its compilers, video codecs, and NVML, which nvidia-smi reads.
var libraryNames = []string{
	"libcuda.so", "libcudadebugger.so", "libnvidia-ml.so", "libnvidia-ptxjitcompiler.so", "libnvidia-nvvm.so", "libnvidia-gpucomp.so",
	"libnvidia-opencl.so", "libnvcuvid.so", "libnvidia-encode.so", "libnvidia-opticalflow.so", "libnvidia-cfg.so", "libnvidia-allocator.so",
}

// libraryDirs are where distributions put them.
var libraryDirs = []string{
	"usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib/x86_64-linux-gnu/nvidia/current",
	"usr/lib/aarch64-linux-gnu/nvidia/current", "usr/lib", "run/opengl-driver/lib",
}

// byDriver are the GPUs of a node that has NVIDIA's driver and no CDI file for them.
func byDriver(root string, gpus []nvidiaGPU) []Device {
	var shared contract.Devices
	for _, name := range []string{"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"} {
		if path := "/dev/" + name; exists(root, path) {
			shared.Nodes = append(shared.Nodes, contract.DeviceNode{Path: path, HostPath: filepath.Join(root, path), Access: "rw"})
		}
	}
	shared.Mounts = driverFiles(root)
	// The directories do not exist in most images, so their loaders are told.
	shared.Env = []string{"LD_LIBRARY_PATH=" + librariesAt}
	var out []Device
	for i := range gpus {
		g := &gpus[i]
		if !exists(root, g.node()) {
			continue
		}
		d := Device{Kind: KindGPU, Name: "nvidia.com/gpu=" + strconv.Itoa(g.minor), Model: g.model, Driver: g.driver, UUID: g.uuid, give: shared}
		d.give.Nodes = append(slices.Clone(shared.Nodes), contract.DeviceNode{Path: g.node(), HostPath: filepath.Join(root, g.node()), Access: "rw"})
		out = append(out, d)
	}
	return out
}

func exists(root, path string) bool {
	_, err := os.Stat(filepath.Join(root, path))
	return err == nil
}

// driverFiles are the driver's libraries and nvidia-smi, for this machine's architecture.
func driverFiles(root string) []contract.DeviceMount {
	var out []contract.DeviceMount
	taken := map[string]bool{}
	for _, dir := range libraryDirs {
		for _, begin := range libraryNames {
			paths, _ := filepath.Glob(filepath.Join(root, dir, begin+"*")) // the pattern is well-formed
			for _, path := range paths {
				name := filepath.Base(path)
				// A link's target is mounted under the link's name, which is what programs load.
				real, err := filepath.EvalSymlinks(path)
				if err != nil || taken[name] || !loadable(real) {
					continue
				}
				taken[name] = true
				out = append(out, contract.DeviceMount{Path: filepath.Join(librariesAt, name), HostPath: real})
			}
		}
	}
	if smi := filepath.Join(root, "usr/bin/nvidia-smi"); exists(root, "/usr/bin/nvidia-smi") {
		out = append(out, contract.DeviceMount{Path: filepath.Join(programsAt, "nvidia-smi"), HostPath: smi})
	}
	return out
}

// loadable reports whether a file is a library for 64-bit programs.
func loadable(path string) bool {
	f, err := elf.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	return f.Class == elf.ELFCLASS64
}
