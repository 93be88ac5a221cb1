package api

// PolicySpec is what the operator lets the namespaces whose name matches ask for. It is looked at when a job or an
// environment is submitted; what is there already goes on.
type PolicySpec struct {
	Match string `json:"match" doc:"A namespace, or a pattern: * stands for any characters, ? for one, [a-c] for one of a set. Of the policies that match a namespace the first counts."`
	// NoProcess, NoHostNetwork: what containers are there to prevent.
	NoProcess     bool `json:"no_process,omitempty" doc:"Reject jobs and environments without an image, which run as processes on the node's file system."`
	NoHostNetwork bool `json:"no_host_network,omitempty" doc:"Reject the node's own network (network: host)."`
	// Isolation is what containers may demand; the first is given to those that demand nothing.
	Isolation  []string `json:"isolation,omitempty" doc:"Allowed kinds of isolation, as container-userns or runsc; containers that request none get the first. Default: any."`
	Registries []string `json:"registries,omitempty" doc:"Allowed sources of images: registries, as ghcr.io or docker.io, or prefixes of names in them, as ghcr.io/team; oci:/DIR and docker-archive:/DIR for files of nodes. Default: all."`
}
