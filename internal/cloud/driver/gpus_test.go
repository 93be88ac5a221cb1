package driver

import (
	"testing"

	"github.com/musterhq/muster"
)

func TestModels(t *testing.T) {
	for name, want := range map[string]string{
		"gpu-t4": "T4", "nvidia-a100-80gb": "A100-80GB", "a100": "A100", "A100_40GB": "A100", "NVIDIA L40S": "L40S", "h100_sxm5_80gb": "H100",
		"fast-nic": "", "a1000": "", "gpu": "", "": "",
	} {
		if got := ModelIn(name); got != want {
			t.Errorf("%s: %q", name, got)
		}
	}
	// A cloud that counts what is usable says a little less than another.
	for _, c := range []struct {
		name  string
		mib   muster.Bytes
		model string
		gib   int
	}{{"L4", 22888, "L4", 24}, {"A100", 40960, "A100", 40}, {"A100", 81920, "A100-80GB", 80}, {"L4", 2861, "L4-3GB", 3},
		{"T4", 0, "T4", 16}, {"A100-80GB", 0, "A100-80GB", 80}, {"X1", 0, "X1", 0}, {"X1", 8192, "X1", 8}, {"", 8192, "", 8}} {
		if model, gib := GPUModel(c.name, c.mib*muster.MiB); model != c.model || gib != c.gib {
			t.Errorf("%s of %d MiB: %s, %d", c.name, c.mib, model, gib)
		}
	}
}

func TestDetails(t *testing.T) {
	o := &muster.Offering{Price: 350000, Attributes: map[string]string{"arch": "arm64"}, Capacity: muster.Resources{CPU: 4000, Memory: 16 * muster.GiB}}
	AddGPUs(o, "T4G", 0, 2)
	AddGPUs(o, "T4G", 0, 0)
	if got, want := Details(o), "4 cpu, 16GiB memory, arm64, 2 gpu T4G with 16GiB, 0.35 an hour"; got != want {
		t.Errorf("%s", got)
	}
}
