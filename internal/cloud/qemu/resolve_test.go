package qemu

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
)

// TestWrongImage: an image that is no qcow2 file is refused for good, and a check names it before any
// machine is created.
func TestWrongImage(t *testing.T) {
	h := newHost(t)
	raw := filepath.Join(t.TempDir(), "debian.raw")
	if err := os.WriteFile(raw, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, image := range []string{raw, empty, t.TempDir()} {
		p := h.open(t, "o", 0)
		p.cfg.Image = image
		got := p.Create(t.Context(), []cloud.Intent{intent("t")})
		if err := got[0].Err; !muster.IsKind(err, muster.FaultInvalid) || !strings.Contains(err.Error(), image+" is no qcow2 file") {
			t.Errorf("%v", err)
		}
		if problem := resolved(t, p, "image").Problem; !strings.Contains(problem, image+" is no qcow2 file") {
			t.Errorf("%q", problem)
		}
		if entries, _ := os.ReadDir(h.dir); len(entries) != 0 {
			t.Errorf("%s is left", entries[0].Name())
		}
	}
	if problem := resolved(t, h.open(t, "o", 0), "image").Problem; problem != "" {
		t.Error(problem)
	}
}

// TestConfiguredKVM: a check says so when the accelerator that the configuration names is not there.
func TestConfiguredKVM(t *testing.T) {
	p := newHost(t).open(t, "o", 0)
	was := kvmDevice
	t.Cleanup(func() { kvmDevice = was })
	kvmDevice = filepath.Join(t.TempDir(), "kvm")
	if problem := resolved(t, p, "accelerator").Problem; problem != "" {
		t.Errorf("of tcg: %s", problem)
	}
	p.cfg.Accelerator = "kvm"
	if problem := resolved(t, p, "accelerator").Problem; !strings.Contains(problem, kvmDevice) || !strings.Contains(problem, "group kvm") {
		t.Errorf("%q", problem)
	}
}

// resolved is the entry of this kind.
func resolved(t *testing.T, p *Provider, what string) cloud.Resolved {
	t.Helper()
	list, err := p.Resolve(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range list {
		if r.What == what {
			return r
		}
	}
	t.Fatalf("nothing says %s: %v", what, list)
	return cloud.Resolved{}
}
