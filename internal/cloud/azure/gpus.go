package azure

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud/driver"
)

// seriesShape takes the second part of a size's name apart: series, cores and features, as NC, 24 and
// ads of Standard_NC24ads_A100_v4.
var seriesShape = regexp.MustCompile(`^(N[A-Z])(\d+)(?:-\d+)?([a-z]*)$`)

// silentModels are those of series whose names have no model, by series, features and version.
var silentModels = map[string]struct {
	model string
	gib   muster.Bytes
}{
	"NC1": {"K80", 12}, "NC2": {"P100", 16}, "NC3": {"V100", 16},
	"ND1": {"P40", 24}, "ND2": {"V100", 32}, "NDasr4": {"A100", 40},
	"NV1": {"M60", 8}, "NV3": {"M60", 8}, "NV4": {"MI25", 16},
}

// gpuOf is the model of the GPUs of a size, and the memory of one where Azure sells two; empty: its name
// does not tell. Azure's list of sizes has their number and says no model.
func gpuOf(name string) (model string, memory muster.Bytes) {
	parts := strings.Split(name, "_")
	if len(parts) < 2 {
		return "", 0
	}
	m := seriesShape.FindStringSubmatch(parts[1])
	if m == nil {
		return "", 0
	}
	series, features, version := m[1], m[3], "1"
	if v, ok := strings.CutPrefix(parts[len(parts)-1], "v"); ok {
		version = v
	}
	if model = driver.ModelIn(strings.Join(parts[2:], "_")); model == "" {
		s, ok := silentModels[series+features+version]
		if !ok {
			s = silentModels[series+version]
		}
		return s.model, s.gib * muster.GiB
	}
	cores, _ := strconv.Atoi(m[2])
	switch {
	case series == "NV" && model == "A10" && cores < 36:
		// A part of one: its driver calls it so, and it has as much of the memory.
		gib := 24 * cores / 36
		return "A10-" + strconv.Itoa(gib) + "Q", muster.Bytes(gib) * muster.GiB
	case series == "NC" && model == "A100", features == "amsr":
		return model, 80 * muster.GiB
	case series == "NC" && model == "H100":
		return model, 94 * muster.GiB // the kind with NVLink between two
	}
	return model, 0
}
