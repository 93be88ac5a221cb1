package launch

import (
	"strings"
	"testing"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/agent/contract"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

func TestContainerConfig(t *testing.T) {
	image := &contract.ImageConfig{Entrypoint: []string{"e"}, Cmd: []string{"c"}, Workdir: "/i"}
	for _, test := range []struct {
		spec    wire.AllocSpec
		command string
		work    string
	}{
		{wire.AllocSpec{}, "e c", "/i"},
		{wire.AllocSpec{Template: api.Template{Command: []string{"x"}, Workdir: "/w"}}, "e x", "/w"},
		{wire.AllocSpec{Template: api.Template{Entrypoint: []string{"o"}}}, "o", "/i"},
		{wire.AllocSpec{Template: api.Template{Entrypoint: []string{"o"}, Command: []string{"x"}}, Inputs: []wire.Input{{}}}, "o x", Workspace},
		{wire.AllocSpec{Template: api.Template{Entrypoint: []string{""}, Command: []string{"x"}, Workdir: "/w"}, Outputs: []wire.Output{{}}}, "x", "/w"},
		{wire.AllocSpec{Template: api.Template{Entrypoint: []string{""}}}, "", "/i"},
	} {
		if got := strings.Join(commandOf(&test.spec, image), " "); got != test.command {
			t.Errorf("%+v: command %q, want %q", test.spec, got, test.command)
		}
		if got := workdirOf(&test.spec, image); got != test.work {
			t.Errorf("%+v: work directory %q, want %q", test.spec, got, test.work)
		}
	}
	for name, want := range map[string]int{"": 0, "SIGQUIT": 3, "quit": 3, "9": 9, "SIGRTMIN+3": 37} {
		if got, ok := signalOf(name); !ok || int(got) != want {
			t.Errorf("signal %q: %d, %v", name, got, ok)
		}
	}
	for _, bad := range []string{"SIG", "0", "-1", "99", "RTMIN+99", "NOSUCH"} {
		if got, ok := signalOf(bad); ok {
			t.Errorf("signal %q: %d", bad, got)
		}
	}
	if got := hostname(&wire.AllocSpec{Job: "j", Template: api.Template{Hostname: "db.local"}}); got != "db.local" {
		t.Errorf("hostname %q", got)
	}
	if got := hostname(&wire.AllocSpec{Job: strings.Repeat("a.b", 30), Index: 123456}); len(got) > 63 || !strings.HasSuffix(got, "-123456") {
		t.Errorf("hostname %q", got)
	}
}

// Variables of devices count over those of image and job; lists of directories are put before them.
func TestEquip(t *testing.T) {
	c := &contract.SandboxConfig{Env: []string{"CUDA_VISIBLE_DEVICES=3", "LD_LIBRARY_PATH=/own", "Z=1"}, Container: &contract.Container{}}
	d := &contract.Devices{Env: []string{"CUDA_VISIBLE_DEVICES=0", "LD_LIBRARY_PATH=/vendor", "A=2"}}
	Equip(c, d)
	if got := strings.Join(c.Env, " "); got != "A=2 CUDA_VISIBLE_DEVICES=0 LD_LIBRARY_PATH=/vendor:/own Z=1" || c.Container.Devices != d {
		t.Errorf("%q", got)
	}
	Equip(c, nil)
	if len(c.Env) != 4 {
		t.Errorf("%q", c.Env)
	}
}
