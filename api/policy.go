package api

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
