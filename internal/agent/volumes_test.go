package agent

import (
	"strings"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/agent/contract"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// The agent mounts only what it was configured with, and says of what it has what jobs are placed by.
func TestMountVolumes(t *testing.T) {
	n := &node{cfg: Config{Volumes: map[string]Volume{"data": {Path: "/srv/data"}, "out": {Path: "/srv/out", Writable: true}}}}
	if a := n.volumeAttributes(); a[muster.AttributeVolumes] != "tmpfs,data,out" || a[muster.AttributeVolumesWritable] != "out" {
		t.Errorf("%v", a)
	}
	if a := (&node{}).volumeAttributes(); len(a) != 1 || a[muster.AttributeVolumes] != muster.VolumeTmpfs {
		t.Errorf("%v", a)
	}
	for _, c := range []struct {
		ask  api.VolumeSpec
		want string
	}{
		{api.VolumeSpec{Name: "data", Path: "/b"}, ""},
		{api.VolumeSpec{Name: "out", Path: "/b", Writable: true}, ""},
		{api.VolumeSpec{Name: "data", Path: "/b", Writable: true}, "may not be written"},
		{api.VolumeSpec{Name: "other", Path: "/b"}, "volume other"},
	} {
		al := &allocation{node: n, spec: &wire.AllocSpec{}}
		al.spec.Volumes = []api.VolumeSpec{c.ask, {Path: "/a", Tmpfs: 4096}}
		box := &contract.SandboxConfig{Container: &contract.Container{}}
		switch f := al.mountVolumes(box); {
		case c.want == "" && (f != nil || len(box.Container.Mounts) != 2 || box.Container.Mounts[0].Path != "/a" || box.Container.Mounts[1].Source != n.cfg.Volumes[c.ask.Name].Path):
			t.Errorf("%+v: %v, %+v", c.ask, f, box.Container.Mounts)
		case c.want != "" && (f == nil || f.Class != muster.FailureNode || !strings.Contains(f.Message, c.want)):
			t.Errorf("%+v: %v, want %q", c.ask, f, c.want)
		}
	}
}
