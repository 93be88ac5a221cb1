// Package qemu is the driver of virtual machines on the server's own host: QEMU, with KVM where it
// works. Developers try clouds with it, and it stands behind the stand-ins of the clouds in tests.
//
// A machine is a directory, named by owner and token. It holds a record with the machine's tags, a
// copy-on-write disk, the seed that cloud-init reads, and the sockets and the process id of QEMU, which
// is a process of its own: it goes on while the server is away, and is found again by its directory.
//
// It must never touch a directory of another owner, nor end a process whose command line does not name
// the directory. It decides nothing: see package cloud.
package qemu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
)

// Programs that the driver runs.
const (
	system = "qemu-system-x86_64"
	img    = "qemu-img"
)

// userDataLimit is how much user data a machine takes. The seed has no limit of its own; cloud-init
// keeps a copy in memory.
const userDataLimit = 1 << 20

// Config is what a Provider needs. Owner, Dir and Image are required.
type Config struct {
	Name  muster.ProviderName
	Owner string
	// Dir holds the machines. Its path has at most 60 bytes, because sockets are below it.
	Dir string
	// Image is the base image, a qcow2 file with cloud-init and an SSH server. If IMAGE.vmlinuz and
	// IMAGE.initrd are beside it, machines boot these with /dev/vda as root; else they boot from the
	// image.
	Image string
	// Offerings are what can be created; if there are none, one that has what this host has.
	Offerings []muster.Offering
	// Accelerator is kvm or tcg. Empty: kvm if it works here, else tcg.
	Accelerator string
	// Access is how machines are reached, without their addresses. User is debian if empty, Shutdown is
	// poweroff.
	Access cloud.Access
	Logger *slog.Logger
}

// Provider makes virtual machines on this host.
type Provider struct {
	cfg Config
	log *slog.Logger
	// accel finds out the accelerator, once.
	accel func() (name, why string)
	// admission holds one token: machines are counted and recorded by one create at a time.
	admission chan struct{}
	// free is the memory and disk that this host has left; tests replace it.
	free func() (muster.Resources, error)
	// step is called before each step of a create and a destroy, for tests that stop between them.
	step func(string) error
}

var (
	_ cloud.Accessor     = (*Provider)(nil)
	_ cloud.Bootable     = (*Provider)(nil)
	_ cloud.Consistent   = (*Provider)(nil)
	_ cloud.NoticeReader = (*Provider)(nil)
	_ cloud.Resolver     = (*Provider)(nil)
	_ cloud.Suspender    = (*Provider)(nil)
	_ cloud.Sweeper      = (*Provider)(nil)

	_ cloud.OffersConfigured = (*Provider)(nil)
)

// maxDir keeps the path of a QMP socket below the 107 bytes that a Unix socket's may have.
const maxDir = 107 - len("/m-0123456789abcdef01234567/qmp")

// New makes the provider. Nothing is run.
func New(cfg Config) (*Provider, error) {
	switch {
	case cfg.Owner == "" || cfg.Dir == "":
		return nil, errors.New("provider qemu: owner and directory are needed")
	case cfg.Image == "":
		return nil, errors.New("provider qemu: image is missing; `make vm-image` builds one")
	case runtime.GOARCH != "amd64" || runtime.GOOS != "linux":
		return nil, fmt.Errorf("provider qemu: it makes machines on Linux on x86-64, and this is %s on %s", runtime.GOOS, runtime.GOARCH)
	case len(cfg.Dir) > maxDir:
		return nil, fmt.Errorf("provider qemu: the directory %s has %d bytes; it has at most %d, because the sockets of the machines are below it: choose a shorter data_dir or name", cfg.Dir, len(cfg.Dir), maxDir)
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	cfg.Access.User = cmp.Or(cfg.Access.User, "debian")
	cfg.Access.Shutdown = cmp.Or(cfg.Access.Shutdown, "poweroff")
	if len(cfg.Offerings) == 0 {
		cfg.Offerings = []muster.Offering{hostOffering()}
	}
	p := &Provider{cfg: cfg, log: cfg.Logger, admission: make(chan struct{}, 1), step: func(string) error { return nil }}
	p.free = p.freeNow
	p.accel = sync.OnceValues(func() (string, string) { return accelerator(cfg.Accelerator) })
	return p, nil
}

// hostOffering is what a host without configured offerings has: machines with all of its cores and a
// quarter of its memory, so that there can be a few.
func hostOffering() muster.Offering {
	_, total, _ := memory()
	return muster.Offering{Name: "default", Market: muster.OnDemand, Available: true,
		Capacity: muster.Resources{CPU: muster.MilliCPU(runtime.NumCPU() * 1000), Memory: max(total/4, muster.GiB), Disk: 20 * muster.GiB}}
}

// UserDataLimit is cloud.Bootable's.
func (p *Provider) UserDataLimit() int { return userDataLimit }

// Consistency is cloud.Consistent's: the list is the directory, so it shows what there is.
func (p *Provider) Consistency() cloud.Consistency {
	return cloud.Consistency{ListLag: 0, Agreement: time.Second}
}

// Offers is cloud.Provider's.
func (p *Provider) Offers(context.Context) ([]muster.Offering, error) {
	out := slices.Clone(p.cfg.Offerings)
	for i := range out {
		out[i].Provider = p.cfg.Name
		out[i].Market = cmp.Or(out[i].Market, muster.OnDemand)
	}
	return out, nil
}

// OffersConfigured is cloud.OffersConfigured's: the offerings are those of the configuration.
func (p *Provider) OffersConfigured() {}

// offering finds an offering of this provider.
func (p *Provider) offering(in *cloud.Intent) *muster.Offering {
	for i := range p.cfg.Offerings {
		o := &p.cfg.Offerings[i]
		if o.Name == in.Offering && o.Zone == in.Zone && cmp.Or(o.Market, muster.OnDemand) == cmp.Or(in.Market, muster.OnDemand) {
			return o
		}
	}
	return nil
}

// Access is cloud.Accessor's.
func (p *Provider) Access(_ context.Context, id muster.InstanceID) (cloud.Access, error) {
	m, err := p.mine(id)
	if err != nil {
		return cloud.Access{}, err
	}
	a := p.cfg.Access
	a.Address = fmt.Sprintf("127.0.0.1:%d", m.Port)
	return a, nil
}

// Suspend is cloud.Suspender's. A suspended machine keeps its memory, and uses no processor.
func (p *Provider) Suspend(ctx context.Context, ids []muster.InstanceID) []error {
	return p.each(ctx, ids, "stop")
}

// Resume is cloud.Suspender's.
func (p *Provider) Resume(ctx context.Context, ids []muster.InstanceID) []error {
	return p.each(ctx, ids, "cont")
}

// each sends a command to machines. QEMU takes both commands in any state.
func (p *Provider) each(ctx context.Context, ids []muster.InstanceID, command string) []error {
	errs := make([]error, len(ids))
	for i, id := range ids {
		if m, err := p.mine(id); err != nil {
			errs[i] = err
		} else if err := qmp(ctx, filepath.Join(m.dir, qmpName), command); err != nil {
			errs[i] = &muster.Fault{Kind: muster.FaultTransient, Message: fmt.Sprintf("instance %s: %s", id, command), Err: err}
		}
	}
	return errs
}

// noticeName is the file in a machine's directory by which somebody plays the notice of a cloud.
const noticeName = "notice"

// Notices is cloud.NoticeReader's. A machine that is to be taken ends at the time of its notice. A file
// that cannot be read as a notice is logged: it must not hide the notices of other machines.
func (p *Provider) Notices(ctx context.Context) ([]cloud.Notice, error) {
	all, err := p.machines()
	if err != nil {
		return nil, err
	}
	var out []cloud.Notice
	for _, m := range all {
		n, err := readNotice(filepath.Join(m.dir, noticeName))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			p.log.Warn("a file of a notice is ignored", "instance", m.ID, "error", err)
			continue
		}
		if n.Instance = m.ID; n.Kind == cloud.NoticeTaken && n.At <= muster.At(time.Now()) {
			p.log.Info("a machine is taken, as its notice says", "instance", m.ID)
			_ = qmp(ctx, filepath.Join(m.dir, qmpName), "quit") // it is tried again with the next call
		}
		out = append(out, n)
	}
	return out, nil
}

// readNotice reads a notice: a time as 2006-01-02T15:04:05Z, or a duration from the time of the file as
// 30s, and a kind, which is taken if there is none.
func readNotice(path string) (cloud.Notice, error) {
	st, err := os.Stat(path)
	if err != nil {
		return cloud.Notice{}, err
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return cloud.Notice{}, err
	}
	n := cloud.Notice{Kind: cloud.NoticeTaken}
	for _, word := range strings.Fields(string(b)) {
		kind := cloud.NoticeKind(word)
		if kind == cloud.NoticeTaken || kind == cloud.NoticeMaintenance || kind == cloud.NoticeAtRisk {
			n.Kind = kind
		} else if in, err := time.ParseDuration(word); err == nil {
			n.At = muster.At(st.ModTime().Add(in))
		} else if at, err := time.Parse(time.RFC3339, word); err == nil {
			n.At = muster.At(at)
		} else {
			return cloud.Notice{}, fmt.Errorf("%s: %q is no time, no duration, and none of taken, maintenance, at-risk", path, word)
		}
	}
	if n.At == 0 {
		return cloud.Notice{}, fmt.Errorf("%s: write a time as 2030-01-02T03:04:05Z, or a duration as 30s", path)
	}
	return n, nil
}

// Resolve is cloud.Resolver's.
func (p *Provider) Resolve(context.Context) ([]cloud.Resolved, error) {
	var out []cloud.Resolved
	for _, program := range []string{system, img} {
		r := cloud.Resolved{What: "program"}
		path, err := exec.LookPath(program)
		if r.Value = path; err != nil {
			r.Value, r.Problem = program, program+" is not installed; on Debian and Ubuntu: apt-get install qemu-system-x86 qemu-utils"
		}
		out = append(out, r)
	}
	image := cloud.Resolved{What: "image", Value: p.cfg.Image}
	if err := checkImage(p.cfg.Image); err != nil {
		image.Problem = err.Error()
	} else if p.kernel() != "" {
		image.Value += ", with its kernel beside it"
	}
	name, why := p.accel()
	accel := cloud.Resolved{What: "accelerator", Value: name + " (" + why + ")"}
	if p.cfg.Accelerator == "kvm" {
		if f, err := os.OpenFile(kvmDevice, os.O_RDWR, 0); err != nil {
			accel.Problem = fmt.Sprintf("%v: add the server's user to the group kvm, or leave accelerator out", err)
		} else {
			_ = f.Close()
		}
	}
	out = append(out, image, accel)
	available, total, err := memory()
	if err != nil {
		return nil, &muster.Fault{Kind: muster.FaultTransient, Err: err}
	}
	out = append(out, cloud.Resolved{What: "memory", Value: fmt.Sprintf("%s of %s available", available, total)})
	for i := range p.cfg.Offerings {
		o := &p.cfg.Offerings[i]
		r := cloud.Resolved{What: "offering", Value: fmt.Sprintf("%s: %s", o.Name, o.Capacity)}
		if o.Capacity.Memory+overhead > total {
			r.Problem = fmt.Sprintf("it needs %s, and this host has %s", o.Capacity.Memory+overhead, total)
		}
		out = append(out, r)
	}
	return out, nil
}

// kernel is the path without suffix of the kernel and initrd beside the image; empty if machines boot
// from the image.
func (p *Provider) kernel() string {
	for _, suffix := range []string{".vmlinuz", ".initrd"} {
		if _, err := os.Stat(p.cfg.Image + suffix); err != nil {
			return ""
		}
	}
	return p.cfg.Image
}
