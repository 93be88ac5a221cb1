package devices

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/musterhq/muster"
)

// tree writes files below a directory that stands for the node's root.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// nvidia is a file as nvidia-ctk writes it, of two GPUs and of one that has two MIG parts.
const nvidia = `cdiVersion: "0.5.0"
kind: nvidia.com/gpu
containerEdits:
  env: [NVIDIA_VISIBLE_DEVICES=void]
  deviceNodes: [{path: /dev/nvidiactl}, {path: /dev/nvidia-uvm}]
  mounts: [{hostPath: /usr/lib/libcuda.so.550, containerPath: /usr/lib/libcuda.so.550, options: [ro, nosuid, nodev, bind]}]
  hooks: [{hookName: createContainer, path: /usr/bin/nvidia-cdi-hook, args: [nvidia-cdi-hook, update-ldcache]}]
devices:
- {name: all, containerEdits: {deviceNodes: [{path: /dev/nvidia0}, {path: /dev/nvidia1}, {path: /dev/nvidia10}]}}
- {name: GPU-aaaa, containerEdits: {deviceNodes: [{path: /dev/nvidia0}]}}
- {name: "10", containerEdits: {deviceNodes: [{path: /dev/nvidia10}]}}
- {name: "1:0", containerEdits: {deviceNodes: [{path: /dev/nvidia1}, {path: /dev/nvidia-caps/nvidia-cap21}]}}
- {name: "1:1", containerEdits: {deviceNodes: [{path: /dev/nvidia1}, {path: /dev/nvidia-caps/nvidia-cap30}]}}
- {name: "0", containerEdits: {deviceNodes: [{path: /dev/nvidia0}]}}
`

func information(minor, model string) string {
	return "Model: \t\t NVIDIA " + model + "\nIRQ:   \t\t 88\nGPU UUID: \t GPU-" + minor + "\nBus Location: \t 0000:01:00.0\nDevice Minor: \t " + minor + "\n"
}

const version = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\nGCC version:  gcc\n"

func names(v *Inventory) (all []string) {
	for i := range v.Devices {
		all = append(all, v.Devices[i].Name)
	}
	return all
}

func TestCDI(t *testing.T) {
	root := tree(t, map[string]string{
		"etc/cdi/nvidia.yaml":                                 nvidia,
		"var/run/cdi/vendor.json":                             `{"cdiVersion": "0.6.0", "kind": "vendor.example/fpga", "devices": [{"name": "a", "containerEdits": {"deviceNodes": [{"path": "/dev/fpga0", "permissions": "r"}]}}]}`,
		"etc/cdi/README":                                      "not of CDI",
		"proc/driver/nvidia/version":                          version,
		"proc/driver/nvidia/gpus/0000:01:00.0/information":    information("0", "A100-SXM4-40GB"),
		"proc/driver/nvidia/gpus/0000:02:00.0/information":    information("1", "A100-SXM4-40GB"),
		"proc/driver/nvidia/gpus/0000:0a:00.0/information":    information("10", "A100-SXM4-40GB"),
		"proc/driver/nvidia/gpus/0000:0b:00.0/information":    "Model: \t NVIDIA A2\n",
		"proc/driver/nvidia/gpus/0000:0c:00.0/somethingother": "",
	})
	v := Find(root)
	// Numbers are in their order, other names of the same device and "all" are left out.
	want := []string{"nvidia.com/gpu=0", "nvidia.com/gpu=1:0", "nvidia.com/gpu=1:1", "nvidia.com/gpu=10", "vendor.example/fpga=a"}
	if got := names(v); !slices.Equal(got, want) || len(v.Problems) > 0 {
		t.Errorf("%q, %q", got, v.Problems)
	}
	if d := v.Devices[0]; d.Model != "A100-SXM4-40GB" || d.Driver != "550.54.15" || d.UUID != "GPU-0" {
		t.Errorf("%+v", d)
	}
	if d := v.Devices[2]; d.Model != "A100-SXM4-40GB MIG 1:1" {
		t.Errorf("%+v", d)
	}
	if a := v.Attributes(); a["gpu.count"] != "4" || a["gpu.driver"] != "550.54.15" || a["gpu.model"] != "" {
		t.Errorf("%v", a)
	}
	got, err := v.Give([]muster.DevicePlace{{Kind: "gpu", Place: 3}, {Kind: "gpu", Place: 1}})
	if err != nil {
		t.Fatal(err)
	}
	var nodes []string
	for _, n := range got.Nodes {
		nodes = append(nodes, n.Path)
	}
	if want := "/dev/nvidiactl /dev/nvidia-uvm /dev/nvidia10 /dev/nvidia1 /dev/nvidia-caps/nvidia-cap21"; strings.Join(nodes, " ") != want {
		t.Errorf("device files: %q", nodes)
	}
	// What two devices share comes once. Inside there are only these, counted from 0.
	if len(got.Mounts) != 1 || len(got.Hooks) != 1 || !slices.Contains(got.Env, "CUDA_VISIBLE_DEVICES=0,1") {
		t.Errorf("%+v", got)
	}
	if got, err := v.Give([]muster.DevicePlace{{Kind: "vendor.example/fpga"}}); err != nil || len(got.Nodes) != 1 || got.Nodes[0].Access != "r" || len(got.Env) > 0 {
		t.Errorf("%+v, %v", got, err)
	}
}

// What cannot be given is refused; what is only counted needs nothing.
func TestRefused(t *testing.T) {
	v := Find(tree(t, map[string]string{"etc/cdi/nvidia.yaml": nvidia}))
	for _, p := range []muster.DevicePlace{{Kind: "gpu", Place: 4}} {
		if _, err := v.Give([]muster.DevicePlace{p}); err == nil || !strings.Contains(err.Error(), "only 4 of them") {
			t.Errorf("%+v: %v", p, err)
		}
	}
	none := Find(t.TempDir())
	if _, err := none.Give([]muster.DevicePlace{{Kind: "gpu"}}); err == nil || !strings.Contains(err.Error(), "no gpu was found here") {
		t.Error(err)
	}
	if got, err := none.Give([]muster.DevicePlace{{Kind: "licence"}}); got != nil || err != nil {
		t.Errorf("%+v, %v", got, err)
	}
}

// A file that cannot be used is named, and the others count.
func TestBadFiles(t *testing.T) {
	root := tree(t, map[string]string{
		"etc/cdi/a.yaml": "kind: [",
		"etc/cdi/b.yaml": `{"cdiVersion": "0.5.0", "kind": "v.example/x", "devices": [{"name": "0", "containerEdits": {"deviceNodes": [{"path": "/etc/shadow"}]}}]}`,
		"etc/cdi/c.yaml": strings.ReplaceAll(nvidia, "nvidia.com", "other.example"),
		"etc/cdi/d.yaml": nvidia,
	})
	if err := os.Chmod(filepath.Join(root, "etc/cdi/c.yaml"), 0o666); err != nil {
		t.Fatal(err)
	}
	v := Find(root)
	if v.Of("gpu") != 4 || len(v.Problems) != 3 {
		t.Fatalf("%q, %q", names(v), v.Problems)
	}
	for i, want := range []string{"/etc/cdi/a.yaml cannot be used", "not below /dev", "others can write it"} {
		if !strings.Contains(v.Problems[i], want) {
			t.Errorf("%q, want %q", v.Problems[i], want)
		}
	}
}

// A node with NVIDIA's driver and without CDI gives the driver's own files.
func TestByDriver(t *testing.T) {
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	root := tree(t, map[string]string{
		"proc/driver/nvidia/version":                       version,
		"proc/driver/nvidia/gpus/0000:01:00.0/information": information("0", "H100 PCIe"),
		"proc/driver/nvidia/gpus/0000:02:00.0/information": information("1", "H100 PCIe"),
		"dev/nvidia0": "", "dev/nvidia1": "", "dev/nvidiactl": "", "dev/nvidia-uvm": "",
		"usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15": string(self[:4096]),
		"usr/lib/x86_64-linux-gnu/libcudart.so.12":      string(self[:4096]),
		"usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1":    "a text",
		"usr/bin/nvidia-smi":                            "",
	})
	if err := os.WriteFile(filepath.Join(root, "usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15"), self, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("libcuda.so.550.54.15", filepath.Join(root, "usr/lib/x86_64-linux-gnu/libcuda.so.1")); err != nil {
		t.Fatal(err)
	}
	v := Find(root)
	if a := v.Attributes(); a["gpu.count"] != "2" || a["gpu.model"] != "H100 PCIe" {
		t.Errorf("%v, %q", a, v.Problems)
	}
	got, err := v.Give([]muster.DevicePlace{{Kind: "gpu", Place: 1}})
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, n := range got.Nodes {
		paths = append(paths, n.Path)
	}
	for _, m := range got.Mounts {
		paths = append(paths, m.Path)
	}
	want := "/dev/nvidiactl /dev/nvidia-uvm /dev/nvidia1 /usr/local/nvidia/lib64/libcuda.so.1 /usr/local/nvidia/lib64/libcuda.so.550.54.15 /usr/local/nvidia/bin/nvidia-smi"
	if strings.Join(paths, " ") != want {
		t.Errorf("%q", paths)
	}
	// It falls off its bus.
	if v.Missing() != "" {
		t.Error(v.Missing())
	}
	if err := os.Remove(filepath.Join(root, "dev/nvidia0")); err != nil {
		t.Fatal(err)
	}
	if got := v.Missing(); !strings.Contains(got, "nvidia.com/gpu=0 is gone") {
		t.Errorf("%q", got)
	}
}
