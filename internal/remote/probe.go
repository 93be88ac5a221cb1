package remote

import (
	"context"
	"strconv"
	"strings"

	"github.com/musterhq/muster"
)

// Facts are what a host says about itself.
type Facts struct {
	// Arch as Go calls it: amd64, arm64, ….
	Arch string
	UID  int
	// Root: what only root may do can be done, as root or by sudo.
	Root bool
}

// probeScript prints one line; a login shell may print others before.
const (
	probeMark   = "muster-probe"
	probeScript = `r=no; if [ "$(id -u)" = 0 ] || sudo -n true >/dev/null 2>&1; then r=yes; fi; echo ` + probeMark + ` "$(uname -s)" "$(uname -m)" "$(id -u)" "$r"`
)

// Probe asks the host what it is.
func (c *Conn) Probe(ctx context.Context) (Facts, error) {
	r, err := c.Run(ctx, Command{Script: probeScript, Purpose: "look at the host"})
	if err != nil {
		return Facts{}, err
	}
	for line := range strings.Lines(string(r.Stdout)) {
		words := strings.Fields(line)
		if len(words) != 5 || words[0] != probeMark {
			continue
		}
		f := Facts{Arch: goArch(words[2]), Root: words[4] == "yes"}
		if f.UID, err = strconv.Atoi(words[3]); err != nil {
			return Facts{}, muster.Faultf(muster.FaultInvalid, "host %s: its user has the id %q", c.config.Address, words[3])
		}
		if words[1] != "Linux" || f.Arch == "" {
			return f, muster.Faultf(muster.FaultInvalid, "host %s runs %s on %s: Linux on a processor that Go knows is needed", c.config.Address, words[1], words[2])
		}
		return f, nil
	}
	return Facts{}, muster.Faultf(muster.FaultInvalid, "host %s does not answer as a POSIX shell does: %s", c.config.Address, r.Failure())
}

// Arch is the host's architecture as Go calls it.
func (c *Conn) Arch(ctx context.Context) (string, error) {
	f, err := c.Probe(ctx)
	return f.Arch, err
}

// goArch translates what uname -m prints; empty if Go has no such architecture.
func goArch(machine string) string {
	switch machine {
	case "x86_64", "amd64":
		return "amd64"
	case "aarch64", "arm64":
		return "arm64"
	case "i386", "i486", "i586", "i686":
		return "386"
	case "ppc64", "ppc64le", "riscv64", "s390x", "mips", "mips64":
		return machine
	case "loongarch64":
		return "loong64"
	}
	if strings.HasPrefix(machine, "armv6") || strings.HasPrefix(machine, "armv7") || machine == "armv8l" {
		return "arm"
	}
	return ""
}
