package qemu

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/musterhq/muster"
)

// What is kept free on the host.
const (
	// overhead is what QEMU needs beside the memory of its machine: 190 to 260 MiB were measured with
	// all of a small machine's memory in it.
	overhead = 192 * muster.MiB
	// reserve is how much memory stays free for the host.
	reserve = 512 * muster.MiB
	// diskReserve is how much disk is needed for another machine.
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

// probeTime bounds the try of an accelerator.
const probeTime = 3 * time.Second

// accelerator is what QEMU runs machines with, and why. KVM is tried and not only looked for: nested
// hosts have the device and fail at the first machine.
func accelerator(wanted string) (name, why string) {
	if wanted != "" {
		return wanted, "configured"
	}
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return "tcg", "without hardware help: " + err.Error()
	}
	_ = f.Close()
	ctx, cancel := context.WithTimeout(context.Background(), probeTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, system, "-M", "q35", "-accel", "kvm", "-nodefaults", "-display", "none", "-m", "16", "-qmp", "stdio")
	cmd.Stdin = strings.NewReader(`{"execute":"qmp_capabilities"}{"execute":"quit"}`)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "tcg", fmt.Sprintf("without hardware help: a machine does not start with /dev/kvm: %v: %s", err, strings.TrimSpace(string(out[max(0, len(out)-200):])))
	}
	return "kvm", "a machine starts with it"
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
