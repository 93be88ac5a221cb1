package server

import (
	"fmt"
	"os"
	"os/exec"

	"github.com/musterhq/muster/api"
)

// NoContainers says why no node of a configuration can ever run containers; "" if one may. Only
// nodes on the server's own host are known before they are launched: they have its user and its
// programs. Without this, work with an image would wait for a node that never comes.
func NoContainers(cfg *api.ServerConfig) string {
	types := map[string]string{}
	for i := range cfg.Providers {
		types[cfg.Providers[i].Name] = cfg.Providers[i].Type
	}
	why := ""
	for i := range cfg.Pools {
		if types[cfg.Pools[i].Provider] != "local" {
			return ""
		}
		if why = noContainersHere(cfg.Pools[i].OCIRuntime); why == "" {
			return ""
		}
	}
	return why
}

// noContainersHere says why this host runs no containers with a program, which is that of a pool.
func noContainersHere(program string) string {
	if program == "none" {
		return "its pools have oci_runtime: none"
	}
	if os.Geteuid() != 0 {
		return "only root can make containers, and this server runs as an ordinary user; start it as root"
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
