package qemu

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster"
)

// What is kept free on the host.
const (
	// overhead is what QEMU needs beside the memory of its machine: 190 to 260 MiB were measured with
	// all of a small machine's memory in it.
	overhead = 192 * muster.MiB
	// reserve is how much memory stays free for the host.
	reserve = 512 * muster.MiB
	// diskReserve is how much disk stays free for the host.
	diskReserve = 2 * muster.GiB
)

// memory is what the host has available without swapping, and in total.
func memory() (available, total muster.Bytes, err error) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(b)) {
		var kib int64
		if n, _ := fmt.Sscanf(line, "MemTotal: %d kB", &kib); n == 1 {
			total = muster.Bytes(kib << 10)
		}
		if n, _ := fmt.Sscanf(line, "MemAvailable: %d kB", &kib); n == 1 {
			available = muster.Bytes(kib << 10)
		}
	}
	return available, total, nil
}

// freeNow is what the host has left at this moment.
func (p *Provider) freeNow() (muster.Resources, error) {
	available, _, err := memory()
	if err != nil {
		return muster.Resources{}, err
	}
	var st unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(p.cfg.Dir), &st); err != nil {
		return muster.Resources{}, err
	}
	return muster.Resources{Memory: available, Disk: muster.Bytes(st.Bavail) * muster.Bytes(st.Bsize)}, nil
}

// promised is what machines may take beyond what they have taken: QEMU gets memory and disk only as
// the machine uses them, so what is free now would admit machines that fill the host later.
func promised(all []*machine) muster.Resources {
	var sum muster.Resources
	for _, m := range all {
		sum.Memory += max(0, m.Capacity.Memory+overhead-m.resident())
		sum.Disk += max(0, m.Capacity.Disk-m.written())
	}
	return sum
}

// resident is the memory that a machine's process has taken.
func (m *machine) resident() muster.Bytes {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", m.pid()))
	if err != nil {
		return 0 // it does not run yet
	}
	var size, pages int64
	if _, err := fmt.Sscan(string(b), &size, &pages); err != nil {
		return 0
	}
	return muster.Bytes(pages * int64(os.Getpagesize()))
}

// written is the space that a machine's disk takes.
func (m *machine) written() muster.Bytes {
	var st unix.Stat_t
	if unix.Stat(filepath.Join(m.dir, diskName), &st) != nil {
		return 0
	}
	return muster.Bytes(st.Blocks * 512)
}

// The limits of the try of KVM: how long it may take, and how many times as long as without it.
// Nested hosts were seen whose KVM passes for working and takes twenty times as long as TCG for the
// first instructions of a BIOS, and for ever for a kernel.
const (
	probeTime    = time.Second
	probeFactor  = 4
	probeLeast   = 250 * time.Millisecond
	probeSuccess = 33 // what isa-debug-exit makes of the 16 that the boot sector writes: 2 n + 1
)

// kvmDevice is the device of KVM; tests name another path.
var kvmDevice = "/dev/kvm"

// bootSector ends the machine by its debug port: mov al, 16; out 0xf4, al; hlt; jmp -3.
var bootSector = append(append([]byte{0xb0, 0x10, 0xe6, 0xf4, 0xf4, 0xeb, 0xfd}, make([]byte, 503)...), 0x55, 0xaa)

// accelerator is what QEMU runs machines with, and why. KVM is tried and not only looked for.
func accelerator(wanted string) (name, why string) {
	if wanted != "" {
		return wanted, "configured"
	}
	f, err := os.OpenFile(kvmDevice, os.O_RDWR, 0)
	if err != nil {
		return "tcg", "without hardware help: " + err.Error()
	}
	_ = f.Close()
	without, err := probe("tcg", startTime)
	if err != nil {
		return "tcg", "without hardware help: nothing boots here: " + err.Error()
	}
	limit := min(max(probeFactor*without, probeLeast), probeTime)
	took, err := probe("kvm", limit)
	if err != nil {
		return "tcg", fmt.Sprintf("without hardware help: a boot sector does not run with /dev/kvm within %s: %v", limit.Round(time.Millisecond), err)
	}
	return "kvm", fmt.Sprintf("a boot sector runs within %s", took.Round(time.Millisecond))
}

// probe boots a boot sector with an accelerator and returns how long that took.
func probe(accel string, limit time.Duration) (time.Duration, error) {
	f, err := os.CreateTemp("", "muster-probe-")
	if err != nil {
		return 0, err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	if _, err := f.Write(bootSector); err != nil {
		return 0, err
	}
	if err := f.Close(); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	began := time.Now()
	err = exec.CommandContext(ctx, system, "-M", "pc", "-accel", accel, "-nodefaults", "-no-reboot", "-display", "none", "-m", "64",
		"-device", "isa-debug-exit,iobase=0xf4,iosize=0x04", "-drive", "file="+f.Name()+",format=raw,if=ide").Run()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return 0, ctx.Err()
	case errors.As(err, &exit) && exit.ExitCode() == probeSuccess:
		return time.Since(began), nil
	case err == nil:
		return 0, errors.New("QEMU ended before the boot sector ran")
	}
	return 0, err
}

// qmp sends one command to a QEMU over its socket, and waits for the answer.
// The protocol is QEMU's docs/interop/qmp-spec.
func qmp(ctx context.Context, socket, command string) error {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	deadline := time.Now().Add(10 * time.Second)
	if by, ok := ctx.Deadline(); ok && by.Before(deadline) {
		deadline = by
	}
	if err := c.SetDeadline(deadline); err != nil {
		return err
	}
	lines := bufio.NewReader(c)
	// The first line is a greeting. Commands are taken after qmp_capabilities only.
	if _, err := lines.ReadBytes('\n'); err != nil {
		return err
	}
	for _, name := range []string{"qmp_capabilities", command} {
		if _, err := fmt.Fprintf(c, "{%q:%q}\n", "execute", name); err != nil {
			return err
		}
		if err := answer(lines); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// answer reads up to the answer of a command. Events may come before it.
func answer(lines *bufio.Reader) error {
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return err
		}
		var a struct {
			Return *json.RawMessage `json:"return"`
			Error  *struct {
				Desc string `json:"desc"`
			} `json:"error"`
		}
		if err := json.Unmarshal(line, &a); err != nil {
			return err
		}
		switch {
		case a.Error != nil:
			return fmt.Errorf("QEMU says: %s", a.Error.Desc)
		case a.Return != nil:
			return nil
		}
	}
}
