package userns

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// uplinkLog is what the program says, in the directory of an agent.
const uplinkLog = "uplink.log"

const (
	// uplinkTime bounds the start of the program.
	uplinkTime = 10 * time.Second
	// uplinkSaid is how much of what it says is repeated.
	uplinkSaid = 1 << 10
)

// Resolver is the address at which the program answers DNS requests, by the host's resolver.
const Resolver = "10.0.2.3"

// slirp is the program.
const slirp = "slirp4netns"

// Uplink is the program slirp4netns, which carries the packets of the network namespace as
// connections of the user. Its zero value says that there is none.
type Uplink struct {
	process
	// Program is its name.
	Program string `json:"program,omitempty"`
	// Why says why there is none.
	Why string `json:"why,omitempty"`
}

// NoUplink says why containers of an ordinary user get no network of their own on this host; "" if
// nothing is known to be in the way.
func NoUplink() string {
	if _, err := exec.LookPath(slirp); err != nil {
		return "for an ordinary user it needs slirp4netns, which is not on this host; install it, for example with `apt-get install slirp4netns`"
	}
	if unix.Access("/dev/net/tun", unix.R_OK|unix.W_OK) != nil {
		return "for an ordinary user it needs /dev/net/tun, which this user may not open; root allows it with `chmod 666 /dev/net/tun`"
	}
	return ""
}

// startUplink starts the program for the namespace of the holder.
func startUplink(ctx context.Context, dir string, holder int) Uplink {
	if why := NoUplink(); why != "" {
		return Uplink{Why: why}
	}
	ctx, cancel := context.WithTimeout(ctx, uplinkTime)
	defer cancel()
	p, err := startSlirp(ctx, dir, holder)
	if err != nil {
		said, _ := os.ReadFile(filepath.Join(dir, uplinkLog))
		return Uplink{Why: fmt.Sprintf("slirp4netns does not work here: %v: %s", err, strings.Join(strings.Fields(string(said[max(0, len(said)-uplinkSaid):])), " "))}
	}
	return Uplink{process: p, Program: slirp}
}

// startSlirp starts slirp4netns. It ends when the holder's end of the pipe is closed.
func startSlirp(ctx context.Context, dir string, holder int) (process, error) {
	log, err := os.OpenFile(filepath.Join(dir, uplinkLog), os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return process{}, err
	}
	defer func() { _ = log.Close() }()
	alive, err := os.OpenFile("/proc/"+strconv.Itoa(holder)+"/fd/3", os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return process{}, err
	}
	defer func() { _ = alive.Close() }()
	r, w, err := os.Pipe()
	if err != nil {
		return process{}, err
	}
	defer func() { _ = r.Close() }()
	cmd := exec.Command(slirp, "--configure", "--mtu=65520", "--disable-host-loopback", "--exit-fd=3", "--ready-fd=4", strconv.Itoa(holder), "tap0")
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = "/", log, log, []*os.File{alive, w}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	_ = w.Close()
	if err != nil {
		return process{}, err
	}
	deadline, _ := ctx.Deadline()
	_ = r.SetReadDeadline(deadline)
	if _, err := r.Read(make([]byte, 1)); err != nil {
		_ = cmd.Process.Kill()
		return process{}, cmp.Or(cmd.Wait(), err)
	}
	p := identify(cmd.Process.Pid)
	return p, cmd.Process.Release()
}
