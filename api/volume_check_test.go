package api

import (
	"strings"
	"testing"
)

func TestVolumes(t *testing.T) {
	image := func(all ...VolumeSpec) *JobSpec {
		return &JobSpec{Name: "j", Count: 1, Template: Template{Image: "a", Volumes: all}}
	}
	if p := image(VolumeSpec{Name: "data", Path: "/data"}, VolumeSpec{Path: "/data/fast", Tmpfs: 1 << 20}).Validate(); len(p) > 0 {
		t.Errorf("refused: %v", p)
	}
	process := good()
	process.Name, process.Volumes = "j", []VolumeSpec{{Name: "data", Path: "/data"}}
	inputs := image(VolumeSpec{Name: "data", Path: "/workspace"})
	inputs.Outputs = []OutputSpec{{Path: "x"}}
	for want, s := range map[string]*JobSpec{
		"need an image":                 process,
		"where the inputs and outputs":  inputs,
		"where another volume is":       image(VolumeSpec{Name: "a", Path: "/x"}, VolumeSpec{Name: "b", Path: "/x"}),
		"is missing; name a volume":     image(VolumeSpec{Path: "/x"}),
		"is given beside name":          image(VolumeSpec{Path: "/x", Name: "a", Tmpfs: 1 << 20}),
		"a tmpfs can always be written": image(VolumeSpec{Path: "/x", Tmpfs: 1 << 20, Writable: true}),
		"for a file system in memory":   image(VolumeSpec{Path: "/x", Name: "tmpfs"}),
		"it is 4KiB to 16TiB":           image(VolumeSpec{Path: "/x", Tmpfs: 1}),
		"is \"/\"; give an absolute":    image(VolumeSpec{Path: "/", Name: "a"}),
		"is \"/proc/x\"; give":          image(VolumeSpec{Path: "/proc/x", Name: "a"}),
		"is \"/a/../proc\"; give":       image(VolumeSpec{Path: "/a/../proc", Name: "a"}),
	} {
		found := false
		p := s.Validate()
		for _, f := range p {
			found = found || strings.Contains(f.Message, want)
		}
		if !found {
			t.Errorf("%v, want %q", p, want)
		}
	}
}
