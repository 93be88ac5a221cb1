package server

import (
	"context"
	"fmt"
	"os"
	"os/exec"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/agent/cgroup"
	"github.com/musterhq/muster/internal/agent/userns"
)

// NoContainers says why no node of a configuration can ever run containers; "" if one may. Only
// nodes on the server's own host are known before they are launched: they have its user and its
// programs. Without this, work with an image would wait for a node that never comes.
func NoContainers(cfg *api.ServerConfig) string {
	why := ""
	if !onlyHere(cfg) {
		return ""
	}
	for i := range cfg.Pools {
		if why = noContainersHere(cfg.Pools[i].OCIRuntime); why == "" {
			return ""
		}
	}
	return why
}

// NoBridge says why no container of a configuration can ever have a network of its own; "" if one
// may.
func NoBridge(cfg *api.ServerConfig) string {
	if os.Geteuid() == 0 {
		return ""
	}
	if !onlyHere(cfg) {
		return ""
	}
	return userns.NoUplink()
}

// onlyHere reports whether all nodes of a configuration are on the server's own host.
func onlyHere(cfg *api.ServerConfig) bool {
	types := map[string]string{}
	for i := range cfg.Providers {
		types[cfg.Providers[i].Name] = cfg.Providers[i].Type
	}
	for i := range cfg.Pools {
		if types[cfg.Pools[i].Provider] != "local" {
			return false
		}
	}
	return len(cfg.Pools) > 0
}

// noContainersHere says why this host runs no containers with a program, which is that of a pool.
func noContainersHere(program string) string {
	if program == "none" {
		return "its pools have oci_runtime: none"
	}
	if os.Geteuid() != 0 {
		return userns.Refusal(context.Background(), program)
	}
	programs := []string{program}
	if program == "" {
		programs = []string{"crun", "runc"}
	}
	for _, p := range programs {
		if _, err := exec.LookPath(p); err == nil {
			return ""
		}
	}
	if program == "" {
		return "neither crun nor runc is installed on this host; install one, for example with `apt-get install crun`"
	}
	return fmt.Sprintf("the program %s is not on this host; install it, or change oci_runtime of the pool", program)
}

// WeakerHere says what does not work on this host because this server is an ordinary user: of all
// work, and of containers if they work. Each is a sentence.
func WeakerHere(containers bool) (lines []string) {
	if os.Geteuid() == 0 {
		return nil
	}
	if _, err := cgroup.Delegated(); err != nil {
		lines = append(lines, "limits of memory, CPU and processes are not enforced: "+err.Error())
	}
	if !containers {
		return lines
	}
	if err := userns.Ranged(); err != nil {
		lines = append(lines, "containers have one user, root; programs that become another user in them fail: "+err.Error())
	}
	if why := userns.NoUplink(); why != "" {
		lines = append(lines, "network bridge of containers is off: "+why+". They run with `--network none`")
	}
	return append(lines, "containers run with your rights, and their disk is not limited; see docs/isolation.md")
}
