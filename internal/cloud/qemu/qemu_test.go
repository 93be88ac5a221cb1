package qemu

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/cloudtest"
	"github.com/musterhq/muster/internal/testwait"
)

// host is this host with a directory for machines. Its image is empty, so that machines run and boot
// nothing: the driver promises no more than that they run.
type host struct{ dir, image string }

func newHost(t *testing.T) *host {
	t.Helper()
	for _, program := range []string{system, img} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(program, " is not installed")
		}
	}
	// Short: the path of a socket has at most 107 bytes.
	dir, err := os.MkdirTemp("", "q")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	image := filepath.Join(dir, "empty.qcow2")
	if out, err := exec.Command(img, "create", "-q", "-f", "qcow2", image, "1M").CombinedOutput(); err != nil {
		t.Fatal(string(out))
	}
	return &host{dir: filepath.Join(dir, "m"), image: image}
}

// Open is cloudtest.Cloud's.
func (h *host) Open(t *testing.T, owner string) cloud.Provider {
	t.Helper()
	return h.open(t, owner, 0)
}

func (h *host) open(t *testing.T, owner string, limit int) *Provider {
	t.Helper()
	p, err := New(h.config(owner, limit))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (h *host) config(owner string, limit int) Config {
	return Config{Name: "here", Owner: owner, Dir: h.dir, Image: h.image, Accelerator: "tcg", Access: cloud.Access{KeyFile: "/key"},
		Offerings: []muster.Offering{{Name: "small", Market: muster.OnDemand, Available: true, Limit: limit,
			Capacity: muster.Resources{CPU: 1000, Memory: 64 * muster.MiB, Disk: 64 * muster.MiB}}}}
}

// running are the QEMU processes with an argument below a directory.
func running(dir string) []int {
	var pids []int
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		line, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if strings.HasPrefix(string(line), system) && strings.Contains(string(line), dir+"/") {
			pids = append(pids, pid)
		}
	}
	return pids
}

func TestConformance(t *testing.T) {
	cloudtest.Run(t, 10*time.Second, func(t *testing.T) cloudtest.Cloud { return newHost(t) })
}

func intent(token muster.Token) cloud.Intent {
	return cloud.Intent{Token: token, Node: "n1", Pool: "p", Offering: "small", Market: muster.OnDemand,
		Boot: cloud.Boot{UserData: muster.NewSecret("#!/bin/sh\ntrue\n")}}
}

func create(t *testing.T, p *Provider, token muster.Token) cloud.Instance {
	t.Helper()
	got := p.Create(t.Context(), []cloud.Intent{intent(token)})
	if got[0].Err != nil {
		t.Fatal(got[0].Err)
	}
	return got[0].Instance
}

// TestStoppedBetweenAnySteps: a server that dies between two steps of a create or a destroy leaves
// nothing that its successor does not find: a list shows it, or it is a leftover, and another create
// of the token completes it.
func TestStoppedBetweenAnySteps(t *testing.T) {
	h := newHost(t)
	died := errors.New("the server died")
	dies := func(step string) *Provider {
		p := h.open(t, "o", 0)
		p.step = func(now string) error {
			if now == step {
				return died
			}
			return nil
		}
		return p
	}
	successor := h.open(t, "o", 0)
	empty := func() {
		t.Helper()
		left, err := successor.Leftovers(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, err := range successor.Remove(t.Context(), left) {
			if err != nil {
				t.Error(err)
			}
		}
		entries, _ := os.ReadDir(h.dir)
		for _, e := range entries {
			t.Errorf("%s is left", e.Name())
		}
	}
	for _, step := range []string{"record", "seed", "disk", "start", "answer"} {
		token := muster.Token("t-" + step)
		if got := dies(step).Create(t.Context(), []cloud.Intent{intent(token)}); !errors.Is(got[0].Err, died) {
			t.Fatalf("%s: %v", step, got[0].Err)
		}
		listed, err := successor.List(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		if running := step == "answer"; running != (len(listed.Instances) == 1) {
			t.Errorf("after %s %d machines are listed", step, len(listed.Instances))
		}
		i := create(t, successor, token)
		if again := create(t, successor, token); again.ID != i.ID {
			t.Errorf("%s: two machines for one token", step)
		}
		if errs := successor.Destroy(t.Context(), []muster.InstanceID{i.ID}); errs[0] != nil {
			t.Error(errs[0])
		}
		empty()
	}
	for _, step := range []string{"end", "remove", "remove " + diskName, "remove " + lockName} {
		i := create(t, successor, "u")
		if errs := dies(step).Destroy(t.Context(), []muster.InstanceID{i.ID}); !errors.Is(errs[0], died) {
			t.Fatalf("%s: %v", step, errs[0])
		}
		if errs := successor.Destroy(t.Context(), []muster.InstanceID{i.ID}); errs[0] != nil {
			t.Error(errs[0])
		}
		if list, err := successor.List(t.Context(), ""); err != nil || len(list.Instances) != 0 {
			t.Errorf("%s: %v, %v", step, list, err)
		}
		empty()
	}
}

// TestPowerOff: a machine whose QEMU ends is listed no more, its token makes no other one, and what it
// leaves is a leftover.
func TestPowerOff(t *testing.T) {
	h := newHost(t)
	p := h.open(t, "o", 0)
	i := create(t, p, "t")
	m, err := p.mine(i.ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := qmp(t.Context(), filepath.Join(m.dir, qmpName), "quit"); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the machine is not listed", func() bool {
		list, err := p.List(t.Context(), "")
		return err == nil && list.Complete && len(list.Instances) == 0
	})
	if got := p.Create(t.Context(), []cloud.Intent{intent("t")}); !muster.IsKind(got[0].Err, muster.FaultTransient) {
		t.Errorf("the token again: %v", got[0].Err)
	}
	left, err := p.Leftovers(t.Context())
	if err != nil || len(left) != 1 || left[0].ID != string(i.ID) {
		t.Fatalf("%v, %v", left, err)
	}
	if errs := p.Remove(t.Context(), left); errs[0] != nil {
		t.Fatal(errs[0])
	}
	if _, err := os.Stat(m.dir); err == nil {
		t.Error("the directory is still there")
	}
}

// TestProcessOfAnother: a process id that belongs to another process by now is neither taken for a
// machine nor killed.
func TestProcessOfAnother(t *testing.T) {
	h := newHost(t)
	p := h.open(t, "o", 0)
	i := create(t, p, "t")
	m, _ := p.mine(i.ID)
	pid := m.pid()
	other := exec.Command("sleep", "600")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Process.Kill(); _ = other.Wait() }()
	file := filepath.Join(m.dir, pidName)
	was, err := os.ReadFile(file)
	if err != nil || pid == 0 {
		t.Fatal(pid, err)
	}
	write := func(b []byte) {
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write([]byte(strconv.Itoa(other.Process.Pid)))
	if m.runs() {
		t.Error("sleep is taken for the machine")
	}
	if err := end(t.Context(), m.dir); err != nil {
		t.Error(err)
	}
	if err := other.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("sleep was ended: %v", err)
	}
	write(was)
	if errs := p.Destroy(t.Context(), []muster.InstanceID{i.ID}); errs[0] != nil {
		t.Error(errs[0])
	}
}

// TestAccess: what the configuration says of SSH is kept, and what it leaves out is the image's.
func TestAccess(t *testing.T) {
	h := newHost(t)
	p := h.open(t, "o", 0)
	p.cfg.Access.Dir = "/opt/muster"
	i := create(t, p, "t")
	defer p.Destroy(context.Background(), []muster.InstanceID{i.ID})
	a, err := p.Access(t.Context(), i.ID)
	if err != nil || !strings.HasPrefix(a.Address, "127.0.0.1:") {
		t.Fatal(a, err)
	}
	if a.Address = ""; a.Dir != "/opt/muster" || a.User != "debian" || a.KeyFile != "/key" || a.Shutdown != "poweroff" {
		t.Errorf("%+v", a)
	}
}

func TestRefusals(t *testing.T) {
	h := newHost(t)
	p := h.open(t, "o", 1)
	i := create(t, p, "one")
	defer p.Destroy(context.Background(), []muster.InstanceID{i.ID})
	if got := p.Create(t.Context(), []cloud.Intent{intent("two")}); !muster.IsKind(got[0].Err, muster.FaultQuota) {
		t.Errorf("above the offering's limit: %v", got[0].Err)
	}
	huge := h.open(t, "o", 0)
	huge.cfg.Offerings[0].Capacity.Memory = 1 << 50
	got := huge.Create(t.Context(), []cloud.Intent{intent("huge")})
	var fault *muster.Fault
	if !errors.As(got[0].Err, &fault) || fault.Kind != muster.FaultCapacity || fault.Scope.Offering != "small" {
		t.Errorf("more memory than there is: %v", got[0].Err)
	}
	bare := h.open(t, "o", 0)
	bare.cfg.Image = "/nowhere"
	if got := bare.Create(t.Context(), []cloud.Intent{intent("bare")}); !muster.IsKind(got[0].Err, muster.FaultInvalid) || !strings.Contains(got[0].Err.Error(), "make vm-image") {
		t.Errorf("no image: %v", got[0].Err)
	}
	if list, _ := p.Leftovers(t.Context()); len(list) != 0 {
		t.Errorf("refused creates left %v", list)
	}
}

// TestMachinesDoNotFillTheHost: what a machine may take counts from its create on, whatever it has
// taken so far, also of machines that are created at the same time and of another owner.
func TestMachinesDoNotFillTheHost(t *testing.T) {
	for name, free := range map[string]muster.Resources{
		"memory": {Memory: reserve + 5*(64*muster.MiB+overhead)/2, Disk: muster.TiB},
		"disk":   {Memory: muster.TiB, Disk: diskReserve + 5*64*muster.MiB/2},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			p, other := h.open(t, "o", 0), h.open(t, "other", 0)
			has := func() (muster.Resources, error) {
				all, err := p.everyRecord()
				left := free
				for _, m := range all {
					left = left.Sub(muster.Resources{Memory: m.resident(), Disk: m.written()})
				}
				return left, err
			}
			p.free, other.free = has, has
			first := create(t, other, "first")
			defer other.Destroy(context.Background(), []muster.InstanceID{first.ID})
			got := make([]cloud.Created, 3)
			var wg sync.WaitGroup
			for i := range got {
				wg.Go(func() { got[i] = p.Create(t.Context(), []cloud.Intent{intent(muster.Token(strconv.Itoa(i)))})[0] })
			}
			wg.Wait()
			made := 0
			for _, g := range got {
				if g.Err == nil {
					made++
					p.Destroy(context.Background(), []muster.InstanceID{g.Instance.ID})
				} else if !muster.IsKind(g.Err, muster.FaultCapacity) || !strings.Contains(g.Err.Error(), "offering small: a machine needs up to") {
					t.Error(g.Err)
				}
			}
			if made != 1 {
				t.Errorf("%d machines of three were made, beside one of another owner; two fit", made)
			}
		})
	}
}

// TestNoticeFile: each form of a notice, one that is nonsense beside them, and a machine that is taken.
func TestNoticeFile(t *testing.T) {
	h := newHost(t)
	p := h.open(t, "o", 0)
	i, other := create(t, p, "t"), create(t, p, "other")
	defer p.Destroy(context.Background(), []muster.InstanceID{i.ID, other.ID})
	write := func(id muster.InstanceID, text string) time.Time {
		path := filepath.Join(h.dir, string(id), noticeName)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		st, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return st.ModTime()
	}
	write(other.ID, "soon")
	fixed := muster.At(time.Date(2130, 1, 2, 3, 4, 5, 0, time.UTC))
	for text, want := range map[string]cloud.Notice{
		"2130-01-02T03:04:05Z\n":           {Kind: cloud.NoticeTaken, At: fixed},
		"maintenance 2130-01-02T03:04:05Z": {Kind: cloud.NoticeMaintenance, At: fixed},
		"30s at-risk":                      {Kind: cloud.NoticeAtRisk},
		"1h":                               {Kind: cloud.NoticeTaken},
		"taken":                            {},
		"":                                 {},
	} {
		written := write(i.ID, text)
		if want.Kind == "" {
			if list, err := p.Notices(t.Context()); err != nil || len(list) != 0 {
				t.Errorf("%q: %v, %v", text, list, err)
			}
			continue
		}
		if in, err := time.ParseDuration(strings.Fields(text)[0]); err == nil {
			want.At = muster.At(written.Add(in))
		}
		want.Instance = i.ID
		if list, err := p.Notices(t.Context()); err != nil || len(list) != 1 || list[0] != want {
			t.Errorf("%q: %v, %v", text, list, err)
		}
	}
	write(i.ID, "0s")
	testwait.Until(t, "the machine is taken", func() bool {
		if _, err := p.Notices(t.Context()); err != nil {
			t.Fatal(err)
		}
		list, err := p.List(t.Context(), "")
		return err == nil && len(list.Instances) == 1 && list.Instances[0].ID == other.ID
	})
}

// TestConsoleIsBounded: a machine that prints without end does not fill the disk.
func TestConsoleIsBounded(t *testing.T) {
	h := newHost(t)
	p := h.open(t, "o", 0)
	i := create(t, p, "t")
	defer p.Destroy(context.Background(), []muster.InstanceID{i.ID})
	path := filepath.Join(h.dir, string(i.ID), consoleName)
	for size, want := range map[int64]int64{consoleLimit: consoleLimit, consoleLimit + 1: 0} {
		if err := os.Truncate(path, size); err != nil {
			t.Fatal(err)
		}
		if _, err := p.List(t.Context(), ""); err != nil {
			t.Fatal(err)
		}
		if st, err := os.Stat(path); err != nil || st.Size() != want {
			t.Errorf("%d bytes became %d, want %d (%v)", size, st.Size(), want, err)
		}
	}
}

// TestProbe: the boot sector is a boot sector, and runs.
func TestProbe(t *testing.T) {
	newHost(t)
	if len(bootSector) != 512 {
		t.Fatalf("%d bytes", len(bootSector))
	}
	if _, err := probe("tcg", startTime); err != nil {
		t.Error(err)
	}
	name, why := accelerator("")
	t.Logf("%s: %s", name, why)
	if name != "tcg" && name != "kvm" || why == "" {
		t.Errorf("%q, %q", name, why)
	}
}
