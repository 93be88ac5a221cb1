package qemu

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/driver"
	"github.com/musterhq/muster/internal/wait"
)

const (
	// startTime bounds how long QEMU takes until its machine runs.
	startTime = 30 * time.Second
	// portTries is how many ports are tried: another program may take one between its choice and the
	// start of QEMU.
	portTries = 5
	// quitTime is how long QEMU has to end by itself.
	quitTime = 2 * time.Second
)

// Create is cloud.Provider's. It answers when QEMU runs, not when the machine has booted.
func (p *Provider) Create(ctx context.Context, intents []cloud.Intent) []cloud.Created {
	out := make([]cloud.Created, len(intents))
	for i := range intents {
		m, err := p.create(ctx, &intents[i])
		if err != nil {
			out[i].Err = err
			continue
		}
		out[i].Instance = m.Instance
	}
	return out
}

// create makes one machine, or finds the one that its token has. Every step can be repeated, so a
// create that was cut off anywhere is completed by the next one.
func (p *Provider) create(ctx context.Context, in *cloud.Intent) (*machine, error) {
	if in.Token == "" || in.Node == "" {
		return nil, muster.Faultf(muster.FaultInvalid, "an intent needs a token and a node")
	}
	if n := len(in.Boot.UserData.Reveal()); n > userDataLimit {
		return nil, muster.Faultf(muster.FaultInvalid, "the user data has %d bytes; a machine takes %d", n, userDataLimit)
	}
	o := p.offering(in)
	if o == nil {
		return nil, muster.Faultf(muster.FaultInvalid, "provider %s has no offering %s", p.cfg.Name, in.Offering)
	}
	id := muster.InstanceID(driver.InstanceName(p.cfg.Owner, in.Token))
	dir := filepath.Join(p.cfg.Dir, string(id))
	unlock, err := lock(ctx, dir)
	if err != nil {
		return nil, transient(err)
	}
	defer unlock()
	m, err := read(dir)
	switch {
	case err == nil && m.runs():
		return m, nil
	case err == nil && m.began():
		return nil, muster.Faultf(muster.FaultTransient, "instance %s of token %s has ended", id, in.Token)
	case err != nil && !errors.Is(err, os.ErrNotExist):
		return nil, transient(err)
	}
	select {
	case p.admission <- struct{}{}:
	case <-ctx.Done():
		return nil, transient(ctx.Err())
	}
	admitted := sync.OnceFunc(func() { <-p.admission })
	defer admitted()
	if err := p.admit(o, id); err != nil {
		// Nothing was made: the directory has only the lock.
		_ = os.RemoveAll(dir)
		return nil, err
	}
	m = &machine{dir: dir, Capacity: o.Capacity, Instance: cloud.Instance{
		ID: id, Offering: o.Name, Zone: o.Zone, Market: cmp.Or(in.Market, muster.OnDemand), Created: muster.At(time.Now()),
		Tags: cloud.Tags{Owner: p.cfg.Owner, Token: in.Token, Node: in.Node, Pool: in.Pool},
	}}
	// The record comes first, so that whatever else is there has an owner.
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"record", func() error { defer admitted(); return m.write() }},
		{"seed", func() error { return writeSeed(dir, id, in.Boot.UserData.Reveal()) }},
		{"disk", func() error { return p.makeDisk(ctx, dir, o.Capacity.Disk) }},
		{"start", func() error { return p.start(ctx, m, o) }},
		{"answer", func() error { return nil }},
	} {
		if err := p.step(step.name); err != nil {
			return nil, err
		}
		if err := step.do(); err != nil {
			var fault *muster.Fault
			if !errors.As(err, &fault) {
				err = transient(fmt.Errorf("instance %s: %s: %w", id, step.name, err))
			}
			if !m.runs() {
				// It has never run, so the token is free again.
				_ = os.RemoveAll(dir)
			}
			return nil, err
		}
	}
	return m, nil
}

func transient(err error) error {
	var fault *muster.Fault
	if errors.As(err, &fault) {
		return err
	}
	return &muster.Fault{Kind: muster.FaultTransient, Err: err}
}

// admit refuses what the host cannot hold beside the machines that there are, or what an offering does
// not allow.
func (p *Provider) admit(o *muster.Offering, id muster.InstanceID) error {
	if _, err := os.Stat(p.cfg.Image); err != nil {
		return &muster.Fault{Kind: muster.FaultInvalid, Field: "image", Message: "`make vm-image` builds one", Err: err}
	}
	all, err := p.everyRecord()
	if err != nil {
		return err
	}
	// A machine that a create has recorded and not started yet counts too. The machine that a repeated
	// create completes is not counted twice.
	all = slices.DeleteFunc(all, func(m *machine) bool { return m.ID == id || m.began() && !m.runs() })
	scope := muster.Scope{Offering: o.Name, Zone: o.Zone, Market: cmp.Or(o.Market, muster.OnDemand)}
	if has := p.count(all, o); o.Limit > 0 && has >= o.Limit {
		return &muster.Fault{Kind: muster.FaultQuota, Message: fmt.Sprintf("offering %s: at most %d at once, and there are", o.Name, o.Limit), Scope: scope}
	}
	free, err := p.free()
	if err != nil {
		return transient(err)
	}
	promised := promised(all)
	free = free.Sub(promised)
	if need := o.Capacity.Memory + overhead; free.Memory < need+reserve {
		return &muster.Fault{Kind: muster.FaultCapacity, Scope: scope,
			Message: fmt.Sprintf("offering %s: a machine needs up to %s; the host has %s left beside what its machines may still take (%s), and %s stay free",
				o.Name, need, max(0, free.Memory), promised.Memory, reserve)}
	}
	if free.Disk < o.Capacity.Disk+diskReserve {
		return &muster.Fault{Kind: muster.FaultCapacity, Scope: scope,
			Message: fmt.Sprintf("offering %s: a machine needs up to %s of disk; the file system of %s has %s left beside what machines may still write (%s), and %s stay free",
				o.Name, o.Capacity.Disk, p.cfg.Dir, max(0, free.Disk), promised.Disk, diskReserve)}
	}
	return nil
}

// count is how many machines of this owner have an offering.
func (p *Provider) count(all []*machine, o *muster.Offering) int {
	n := 0
	for _, m := range all {
		if m.Tags.Owner == p.cfg.Owner && m.Offering == o.Name && m.Zone == o.Zone {
			n++
		}
	}
	return n
}

// writeSeed writes the files that cloud-init reads, which QEMU shows to the machine as a FAT file
// system with the label cidata.
func writeSeed(dir string, id muster.InstanceID, userData string) error {
	seed := filepath.Join(dir, seedName)
	if err := os.MkdirAll(seed, 0o700); err != nil {
		return err
	}
	if userData == "" {
		userData = "#cloud-config\n{}\n"
	}
	return errors.Join(
		os.WriteFile(filepath.Join(seed, "user-data"), []byte(userData), 0o600),
		os.WriteFile(filepath.Join(seed, "meta-data"), fmt.Appendf(nil, "instance-id: %s\nlocal-hostname: %s\n", id, id), 0o600),
		// An empty file keeps cloud-init from waiting for another source of the network's settings.
		os.WriteFile(filepath.Join(seed, "vendor-data"), nil, 0o600),
	)
}

// checkImage reports what is wrong with a base image. QEMU is told the format, because a raw image
// whose first bytes a machine can write would choose other files of the host as its base.
func checkImage(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("%w; `make vm-image` builds one", err)
	}
	defer func() { _ = f.Close() }()
	var magic [4]byte
	if _, err := io.ReadFull(f, magic[:]); err != nil || string(magic[:]) != "QFI\xfb" {
		return fmt.Errorf("%s is no qcow2 file; `make vm-image` builds one, and for a raw image: qemu-img convert -O qcow2 RAW IMAGE", path)
	}
	return nil
}

// makeDisk makes the disk of a machine: the base image, and what the machine has written.
func (p *Provider) makeDisk(ctx context.Context, dir string, size muster.Bytes) error {
	image, err := filepath.Abs(p.cfg.Image)
	if err != nil {
		return err
	}
	if err := checkImage(image); err != nil {
		return &muster.Fault{Kind: muster.FaultInvalid, Field: "image", Err: err}
	}
	disk := filepath.Join(dir, diskName)
	if err := os.Remove(disk); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := run(ctx, img, "create", "-q", "-f", "qcow2", "-b", image, "-F", "qcow2", disk); err != nil {
		return err
	}
	if size == 0 {
		return nil
	}
	// A disk smaller than its image stays as large as the image.
	if err := run(ctx, img, "resize", "-q", disk, strconv.FormatInt(int64(size), 10)); err != nil && !strings.Contains(err.Error(), "shrink") {
		return err
	}
	return nil
}

// run runs a program, and returns what it says if it fails.
func run(ctx context.Context, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, program, args...)
	var said bytes.Buffer
	cmd.Stderr = &said
	err := cmd.Run()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return muster.Faultf(muster.FaultInvalid, "%s is not installed; on Debian and Ubuntu: apt-get install qemu-system-x86 qemu-utils", program)
	case err != nil && said.Len() > 0:
		return fmt.Errorf("%s: %s", program, strings.TrimSpace(said.String()))
	case err != nil:
		return fmt.Errorf("%s: %w", program, err)
	}
	return nil
}

// start starts QEMU. It detaches itself once the machine runs, and has written its process id by then.
func (p *Provider) start(ctx context.Context, m *machine, o *muster.Offering) error {
	for try := 1; ; try++ {
		port, err := freePort()
		if err != nil {
			return err
		}
		// The record has the port before the machine has it.
		m.Port = port
		if err := m.write(); err != nil {
			return err
		}
		startCtx, cancel := context.WithTimeout(ctx, startTime)
		err = run(startCtx, system, p.arguments(m, o)...)
		cancel()
		taken := err != nil && strings.Contains(err.Error(), "host forwarding rule")
		switch {
		case err == nil:
			return nil
		case taken && try < portTries:
			continue
		case strings.Contains(err.Error(), "annot allocate memory"):
			return &muster.Fault{Kind: muster.FaultCapacity, Err: err, Scope: muster.Scope{Offering: o.Name, Zone: o.Zone, Market: m.Market}}
		}
		return err
	}
}

// freePort is a port on 127.0.0.1 that nobody listens on.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// arguments are the command line of a machine's QEMU. q35 is used and not microvm, which hung in one
// boot of four.
func (p *Provider) arguments(m *machine, o *muster.Offering) []string {
	accel, _ := p.accel()
	cpu := "max"
	if accel == "tcg" {
		accel = "tcg,thread=multi"
	}
	in := func(name string) string { return filepath.Join(m.dir, name) }
	args := []string{
		"-name", string(m.ID), "-daemonize", "-pidfile", in(pidName), "-qmp", "unix:" + in(qmpName) + ",server=on,wait=off",
		"-M", "q35", "-accel", accel, "-cpu", cpu, "-nodefaults", "-no-reboot", "-display", "none",
		"-m", strconv.FormatInt(int64(o.Capacity.Memory>>20), 10), "-smp", strconv.FormatInt(max(1, int64(o.Capacity.CPU+999)/1000), 10),
		"-chardev", "file,id=console,append=on,path=" + in(consoleName), "-serial", "chardev:console",
		"-drive", "file=" + in(diskName) + ",format=qcow2,if=none,id=d0,discard=unmap", "-device", "virtio-blk-pci,drive=d0",
		"-drive", "driver=vvfat,dir=" + in(seedName) + ",label=cidata,read-only=on,if=none,id=d1", "-device", "virtio-blk-pci,drive=d1",
		"-netdev", fmt.Sprintf("user,id=n0,hostfwd=tcp:127.0.0.1:%d-:22", m.Port), "-device", "virtio-net-pci,netdev=n0,romfile=",
		"-device", "virtio-rng-pci",
	}
	if k := p.kernel(); k != "" {
		args = append(args, "-kernel", k+".vmlinuz", "-initrd", k+".initrd", "-append", "root=/dev/vda rw console=ttyS0 panic=-1 net.ifnames=0")
	}
	return args
}

// Destroy is cloud.Provider's. It returns when QEMU has ended and the directory is gone.
func (p *Provider) Destroy(ctx context.Context, ids []muster.InstanceID) []error {
	errs := make([]error, len(ids))
	for i, id := range ids {
		errs[i] = p.destroy(ctx, id)
	}
	return errs
}

func (p *Provider) destroy(ctx context.Context, id muster.InstanceID) error {
	if !isID(id) {
		return nil // not ours by its shape, so it does not exist
	}
	dir := filepath.Join(p.cfg.Dir, string(id))
	m, err := read(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return transient(err)
	case m.Tags.Owner != p.cfg.Owner:
		return muster.Faultf(muster.FaultNotFound, "instance %s is of another owner", id)
	}
	unlock, err := lock(ctx, dir)
	if err != nil {
		return transient(err)
	}
	if err := p.step("end"); err != nil {
		unlock()
		return err
	}
	err = end(ctx, dir)
	unlock()
	if err != nil {
		return transient(fmt.Errorf("instance %s: %w", id, err))
	}
	if err := p.step("remove"); err != nil {
		return err
	}
	return p.remove(ctx, string(id))
}

// end ends the QEMU of a directory: by its own command, and if it does not follow by SIGKILL.
func end(ctx context.Context, dir string) error {
	pid := pidOf(dir)
	if pid == 0 {
		return nil
	}
	// The descriptor is of this process, and stays so if its id is given to another one.
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil || pidOf(dir) != pid {
		if err == nil {
			_ = unix.Close(fd)
		}
		return nil // it has ended
	}
	defer func() { _ = unix.Close(fd) }()
	quitCtx, cancel := context.WithTimeout(ctx, quitTime)
	defer cancel()
	_ = qmp(quitCtx, filepath.Join(dir, qmpName), "quit")
	if ended(quitCtx, dir) {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	killCtx, cancelKill := context.WithTimeout(ctx, startTime)
	defer cancelKill()
	for now := pidOf(dir); now != 0; now = pidOf(dir) {
		if now != pid {
			return end(ctx, dir) // while it starts QEMU is two processes
		}
		if !wait.For(killCtx, 10*time.Millisecond) {
			return fmt.Errorf("QEMU, process %d, does not end", pid)
		}
	}
	return nil
}

// ended waits until no QEMU runs for a directory. It reports false when ctx ends first.
func ended(ctx context.Context, dir string) bool {
	for pidOf(dir) != 0 {
		if !wait.For(ctx, 10*time.Millisecond) {
			return false
		}
	}
	return true
}
