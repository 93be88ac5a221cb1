package api

import (
	"path"
	"strings"

	"github.com/musterhq/muster"
)

// PolicySpec is what the operator lets the namespaces whose name matches ask for. It is looked at when a job or an
// environment is submitted; what is there already goes on.
type PolicySpec struct {
	Match string `json:"match" doc:"A namespace, or a pattern: * stands for any characters, ? for one, [a-c] for one of a set. Of the policies that match a namespace the first counts."`
	// NoProcess, NoHostNetwork: what containers are there to prevent.
	NoProcess     bool `json:"no_process,omitempty" doc:"Refuse jobs and environments without an image, which run as processes on the node's own files."`
	NoHostNetwork bool `json:"no_host_network,omitempty" doc:"Refuse the node's own network (network: host)."`
	// Isolation is what containers may demand; the first is given to those that demand nothing.
	Isolation  []string `json:"isolation,omitempty" doc:"Isolation that containers may ask for, as container-userns or runsc; those that ask for none get the first. Default: any."`
	Registries []string `json:"registries,omitempty" doc:"Where images may come from: registries, as ghcr.io or docker.io, or what names in them begin with, as ghcr.io/team; oci:/DIR and docker-archive:/DIR for files of nodes. Default: from anywhere."`
}

func (c *checks) policies(list []PolicySpec) {
	for i := range list {
		p, at := &list[i], index("policies", i)
		if _, err := path.Match(p.Match, ""); err != nil || p.Match == "" {
			c.add(at+".match", "is %s; write the name of a namespace, or a pattern as team-*", quote(p.Match))
		}
		for k, kind := range p.Isolation {
			if kind == string(muster.IsolationProcess) || muster.CheckName(kind) != nil {
				c.add(index(at+".isolation", k), "is %s; write container, container-userns or the name of a runtime of its own, as runsc", quote(kind))
			}
		}
		for k, r := range p.Registries {
			local := strings.HasPrefix(r, ImageLayout) || strings.HasPrefix(r, ImageArchive)
			_, dir, _ := strings.Cut(r, ":")
			switch {
			case local && (!strings.HasPrefix(dir, "/") || path.Clean(dir) != dir):
				c.add(index(at+".registries", k), "is %s; write the path of a directory, as %s/srv/images", quote(r), ImageLayout)
			case !local && (r == "" || strings.ContainsAny(r, " @") || strings.HasSuffix(r, "/") || strings.Contains(r, "://") || !strings.ContainsAny(strings.SplitN(r, "/", 2)[0], ".:")):
				c.add(index(at+".registries", k), "is %s; write the name of a registry, as docker.io, or more of the images' names, as ghcr.io/team", quote(r))
			}
		}
	}
}
