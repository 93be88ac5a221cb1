package driver

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/musterhq/muster"
)

// AttributeGPUMemory is the attribute of offerings with GPUs: how much memory one of them has, in GiB.
const AttributeGPUMemory = "gpu.memory"

// gpuMemory is the usual memory of one GPU of a model, in GiB. Clouds sell some models in two sizes;
// the other one has its size in the model's name, as A100-80GB.
var gpuMemory = map[string]int{
	"K80": 12, "M60": 8, "P4": 8, "P40": 24, "P100": 16, "V100": 16, "T4": 16, "T4G": 16, "L4": 24, "L40S": 48,
	"A10": 24, "A10G": 24, "A100": 40, "H100": 80, "H200": 141, "B200": 180, "B300": 270, "GB200": 186,
	"RTX-PRO-6000": 96, "MI300X": 192,
}

// GPUModel is a model as offerings of all clouds name it, and the memory of one GPU in GiB; 0: nobody
// knows. The name is the cloud's own, and memory what the cloud says of one GPU; 0: it does not say.
// Clouds that say how much of the memory is usable say a little less, so a small difference is none.
func GPUModel(name string, memory muster.Bytes) (model string, gib int) {
	model = strings.ReplaceAll(strings.TrimSpace(name), " ", "-")
	gib = int((memory + muster.GiB/2) / muster.GiB)
	usual, known := gpuMemory[model]
	switch {
	case model == "":
		return "", gib
	case known && (gib == 0 || gib*5 > usual*4 && gib*10 <= usual*11):
		return model, usual
	case known:
		return fmt.Sprintf("%s-%dGB", model, gib), gib
	case gib == 0:
		gib = sizeInName(model)
	}
	return model, gib
}

// ModelIn finds the model of a GPU in a name that people have chosen, as T4 in gpu-t4 and A100-80GB in
// nvidia-a100-80gb; empty: there is none.
func ModelIn(name string) string {
	words := strings.FieldsFunc(strings.ToUpper(name), func(r rune) bool { return (r < 'A' || r > 'Z') && (r < '0' || r > '9') })
	for i, w := range words {
		usual, known := gpuMemory[w]
		if !known {
			continue
		}
		if i+1 < len(words) {
			if gib := sizeInName(w + "-" + words[i+1]); gib > 0 && gib != usual {
				return w + "-" + words[i+1]
			}
		}
		return w
	}
	return ""
}

// sizeInName is the memory that a model has in its name, as 80 of A100-80GB; 0: none.
func sizeInName(model string) int {
	_, size, _ := strings.Cut(model, "-")
	if digits, ok := strings.CutSuffix(size, "GB"); ok {
		if n, err := strconv.Atoi(digits); err == nil {
			return n
		}
	}
	return 0
}

// AddGPUs tells of the GPUs of one instance in its offering: so many of one model. It sets attributes
// of o, whose map must not be shared. Fewer than one changes nothing.
func AddGPUs(o *muster.Offering, name string, memory muster.Bytes, count int) {
	if count < 1 {
		return
	}
	model, gib := GPUModel(name, memory)
	o.Devices = append(o.Devices, muster.Device{Kind: "gpu", Model: model, Count: count})
	if gib > 0 {
		o.Attributes[AttributeGPUMemory] = strconv.Itoa(gib)
	}
}

// Details are what one instance of an offering has and costs, for people who check what a provider
// sells: "4 cpu, 14.9GiB, arm64, 1 gpu T4 with 16GiB, 0.35 an hour".
func Details(o *muster.Offering) string {
	var b strings.Builder
	b.WriteString(o.Capacity.String())
	if a := o.Attributes["arch"]; a != "" && a != "amd64" {
		b.WriteString(", " + a)
	}
	for _, d := range o.Devices {
		b.WriteString(", " + d.String())
		if gib := o.Attributes[AttributeGPUMemory]; gib != "" {
			b.WriteString(" with " + gib + "GiB")
		}
	}
	fmt.Fprintf(&b, ", %s an hour", o.Price)
	return b.String()
}
