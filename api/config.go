package api

import "github.com/musterhq/muster"

// ServerConfig is the file muster.yaml: what a server is told at its start. Fields with the tag
// scope:"server" are each server's own, here and in the types below; the others are the cluster's,
// and the log has them (package config).
type ServerConfig struct {
	// DataDir holds everything that the server keeps.
	DataDir string `json:"data_dir,omitempty" scope:"server" doc:"The server's data directory: log, snapshots, token and, by default, blobs. An absolute path, or relative to the directory in which the server starts."`
	// Listen is the address of the HTTP API.
	Listen string `json:"listen,omitempty" scope:"server" doc:"Address of the HTTP API, as host:port. Default: 127.0.0.1:4750."`
	// AllowedHosts are names under which the API may be asked besides loopback.
	AllowedHosts []string `json:"allowed_hosts,omitempty" scope:"server" doc:"Host names that clients use for the API, in addition to loopback names. Requests with another Host are rejected."`
	// Cluster makes the server one of several.
	Cluster *ClusterSpec `json:"cluster,omitempty" scope:"server" doc:"One of several servers (docs/servers.md): its name and its address for the others. Default: a server alone."`
	// NoAuth lets everyone on this host in.
	NoAuth bool `json:"no_auth,omitempty" scope:"server" doc:"Require no token. Only on a loopback address."`
	// Log says how the server tells what it does.
	Log LogConfig `json:"log,omitzero" scope:"server"`
	// Blob says where output is kept.
	Blob BlobConfig `json:"blob,omitzero" doc:"Where output, declared outputs and uploads are kept."`
	// Retention says how long ended things are kept.
	Retention RetentionConfig `json:"retention,omitzero" doc:"How long ended objects are kept."`
	// LowWater is the free disk below which writes are refused.
	LowWater Size `json:"low_water,omitempty" scope:"server" zero:"5 % of the disk, from 1GiB to 4GiB" doc:"Free disk space of the data directory below which writes are rejected. Default: 5 % of the disk, at least 1GiB and at most 4GiB."`
	// Limits bound what clients can take.
	Limits LimitsConfig `json:"limits,omitzero" scope:"server" doc:"Limits of what clients can use of the server."`
	// Providers are the clouds that nodes come from.
	Providers []ProviderSpec `json:"providers,omitempty" doc:"Sources of nodes."`
	// NodeBinaries is where muster-node for other architectures is found.
	NodeBinaries string `json:"node_binaries,omitempty" scope:"server" doc:"Directory with muster-node-linux-ARCH (amd64, arm64, …) for instances of other architectures. Default: where the muster-node of this host is."`
	// Registries are where images come from, as far as there is something to say of them.
	Registries []RegistrySpec `json:"registries,omitempty" scope:"server" doc:"Registries that need credentials, a mirror or plain HTTP. Others are used without credentials (docs/containers.md)."`
	// ImageCache keeps what nodes pull from the registries above.
	ImageCache ImageCacheConfig `json:"image_cache,omitzero" scope:"server" doc:"Cache of images on the server: nodes get images of the registries above from it, and each part of an image is downloaded once (docs/containers.md). Default: none."`
	// Network says how the server and its nodes reach what is outside.
	Network NetworkConfig `json:"network,omitzero" scope:"server" doc:"Proxy and certificate authorities for outgoing HTTP: of the server for cloud APIs, price lists, buckets and registries; of nodes for images and inputs. Without a proxy here the environment variables HTTP_PROXY, HTTPS_PROXY and NO_PROXY of each program count. Running agents keep their setting until they restart. Default: none."`
	// Shares divide room between namespaces when there is not enough of it.
	Shares []ShareSpec `json:"shares,omitempty" doc:"How capacity is shared among work of equal priority when there is not enough for all. The first rule that matches a namespace applies; a namespace without a rule is a class of its own with weight 1. Capacity that a class does not use is lent to the others and returned as work ends."`
	// Policies say what namespaces may ask for.
	Policies []PolicySpec `json:"policies,omitempty" doc:"What jobs and environments of namespaces may use. A submission that violates a policy is rejected. Default: no policy."`
	// Scheduler says how work is placed.
	Scheduler SchedulerConfig `json:"scheduler,omitzero" doc:"Scheduler settings."`
	// Pools are the rules by which nodes are made.
	Pools []PoolSpec `json:"pools,omitempty" doc:"Rules for launching and destroying nodes."`
	// Compat are other systems' APIs that the server answers as well.
	Compat CompatConfig `json:"compat,omitzero" scope:"server" doc:"APIs of other systems on the same address, for their clients. Default: none."`
}

// NetworkConfig says how programs reach what is outside of a company's network.
type NetworkConfig struct {
	Proxy        string   `json:"proxy,omitempty" doc:"HTTP proxy, as http://proxy.example.org:3128. none: no proxy, even if the environment names one. Default: that of the environment."`
	Username     string   `json:"username,omitempty" doc:"User of the proxy, with password_file."`
	PasswordFile string   `json:"password_file,omitempty" scope:"server" doc:"A file with the password of the proxy, read at the start of the server and of each agent. An absolute path."`
	NoProxy      []string `json:"no_proxy,omitempty" doc:"Hosts, domains (.example.org), addresses and prefixes (10.0.0.0/8) that are reached without the proxy. Loopback, link-local and cloud metadata addresses always are, and the connections to nodes."`
	CAFile       string   `json:"ca_file,omitempty" scope:"server" doc:"A file with certificates in PEM that are trusted in addition to those of the system, for example of a proxy that opens TLS. An absolute path on the server; nodes get its content."`
}

// ProxyNone as a proxy says that there is none.
const ProxyNone = "none"

// CompatConfig are other systems' APIs on top of this one's.
type CompatConfig struct {
	Poseidon *PoseidonConfig `json:"poseidon,omitempty" doc:"Poseidon's API under /api/v1 (docs/poseidon.md). poseidon: {} enables it with the server's own token."`
}

// PoseidonConfig is what Poseidon's API needs to know.
type PoseidonConfig struct {
	Token     muster.Secret `json:"token,omitzero" doc:"The value of clients' Poseidon-Token header. It gives access to /api/v1 only. Better use token_file. Default: the server's own token."`
	TokenFile string        `json:"token_file,omitempty" doc:"A file with the token, read when the server starts. An absolute path."`
	Namespace string        `json:"namespace,omitempty" zero:"default" doc:"Namespace of its environments: number 17 is the environment 17 there. Default: default."`
	// MemoryReserve is set aside for a runner; what clients set is the most it may use.
	MemoryReserve Size     `json:"memory_reserve,omitempty" zero:"16MiB" doc:"Memory reserved for a runner; memoryLimit, which clients set, is its limit. So more runners fit a node than could use their limits at once. Default: 16MiB, as in Poseidon."`
	Wait          Duration `json:"wait,omitempty" doc:"How long a client may have to wait for a runner when none is warm. Default: 0s, refused at once; at most 1h."`
}

// LogConfig says how the server tells what it does, on its stderr.
type LogConfig struct {
	Format string `json:"format,omitempty" enum:"text,json" doc:"Default: text."`
	Level  string `json:"level,omitempty" enum:"debug,info,warn,error" doc:"Default: info."`
}

// SchedulerConfig says how work is placed on nodes.
type SchedulerConfig struct {
	Workers int `json:"workers,omitempty" zero:"1" doc:"Scheduling workers that plan concurrently, 1 to 16. They share one view of the nodes; more than one helps only if planning, not the disk, is slow. Default: 1."`
	// Paused has the workers wait: nothing is placed, what runs goes on.
	Paused bool `json:"paused,omitempty" doc:"Place nothing until it is removed and the configuration is reloaded (SIGHUP). Running work continues (rollouts and drains stop no member of a service), jobs are accepted and wait, and no node is launched for them. Default: false."`
}

// Pool is what the configuration says of a pool; the zero PoolSpec of one that it does not have.
func (s *ServerConfig) Pool(name string) *PoolSpec {
	for i := range s.Pools {
		if p := &s.Pools[i]; p.Name == name {
			return p
		}
	}
	return &PoolSpec{}
}

// Provider is what the configuration says of a provider; the zero ProviderSpec of one that it does not
// have.
func (s *ServerConfig) Provider(name string) *ProviderSpec {
	for i := range s.Providers {
		if p := &s.Providers[i]; p.Name == name {
			return p
		}
	}
	return &ProviderSpec{}
}

// BlobConfig says where output, declared outputs and uploads are kept.
type BlobConfig struct {
	URL       string   `json:"url,omitempty" scope:"server" doc:"A bucket, as s3://name or file:///path. Default: the directory blobs in the data directory."`
	Quota     Size     `json:"quota,omitempty" zero:"20GiB" doc:"Total size limit. Beyond it, output of ended jobs is deleted, first that of the namespace that stores the most. The declared outputs of one member cannot be larger. Default: 20GiB."`
	Retention Duration `json:"retention,omitempty" zero:"that of jobs" doc:"How long blobs of ended jobs are kept, at most as long as the jobs. Default: as long as the jobs."`
}

// RetentionConfig says how long ended things are kept.
type RetentionConfig struct {
	Jobs  Duration `json:"jobs,omitempty" zero:"24h" doc:"Ended jobs with their allocations. Default: 24h."`
	Nodes Duration `json:"nodes,omitempty" zero:"24h" doc:"Nodes that are gone. Default: 24h."`
	// History outlives the jobs: it is on disk.
	History Duration `json:"history,omitempty" zero:"720h" doc:"The history of ended jobs and their attempts, on disk, without output. Default: 720h (30 days)."`
	// Attempts bounds what a service that runs for years leaves behind.
	Attempts int `json:"attempts,omitempty" minimum:"1" maximum:"1000" zero:"5" doc:"Ended attempts of each member that are kept with their output while the job is live, the newest first. Default: 5."`
}

// ProviderSpec is one configured cloud.
type ProviderSpec struct {
	Name      string            `json:"name" doc:"Pools refer to it by this name."`
	Type      string            `json:"type" enum:"local,static,exec,qemu,ec2,hetzner,gce,azure,openstack" doc:"local: instances are agent processes on the server's own host. static: hosts of your own, reached over SSH. exec: a program of yours makes them (docs/providers.md). qemu: virtual machines on the server's own host (docs/clouds/qemu.md). ec2: Amazon EC2 (docs/clouds/ec2.md). hetzner: Hetzner Cloud (docs/clouds/hetzner.md). gce: Google Compute Engine (docs/clouds/gce.md). azure: Microsoft Azure (docs/clouds/azure.md). openstack: a cloud of OpenStack (docs/clouds/openstack.md)."`
	Offerings []OfferingSpec    `json:"offerings,omitempty" doc:"Its offerings, of local, static and qemu; others know them."`
	SSH       *SSHSpec          `json:"ssh,omitempty" doc:"How instances are reached, of all but local. Clouds need none: the server has a key of its own, and knows the login user of its images."`
	Hosts     []HostSpec        `json:"hosts,omitempty" doc:"Of static: the hosts."`
	Command   []string          `json:"command,omitempty" scope:"server" doc:"Of exec: the program and its arguments."`
	Env       map[string]string `json:"env,omitempty" scope:"server" doc:"Of exec: environment variables of the program, in addition to the server's."`
	Timeout   Duration          `json:"timeout,omitempty" zero:"1m" doc:"Of exec: how long one call may take. Default: 1m."`
	BootProbe ProbeSpec         `json:"boot_probe,omitzero" doc:"Of all but local: a command that must succeed on a new instance before it gets an agent. A pool can have its own. Default of clouds: cloud-init is done."`
	// ShutdownEndsBilling is the operator's word for it.
	ShutdownEndsBilling bool `json:"shutdown_ends_billing,omitempty" doc:"Of exec and openstack: an instance that shuts itself down costs nothing. Pools then have a default lease of 1h."`
	CloudSpec
}

// SSHSpec is how instances are reached over SSH.
type SSHSpec struct {
	User       string `json:"user,omitempty" doc:"Login user. Users other than root need sudo without a password. Default: root."`
	KeyFile    string `json:"key_file,omitempty" scope:"server" doc:"The private key, without a passphrase. An absolute path."`
	KnownHosts string `json:"known_hosts,omitempty" scope:"server" doc:"Known hosts file in OpenSSH's format, read again when it changes: the keys of hosts without host_keys here. An absolute path. A host with an unknown key is never used."`
	// ProxyJump and what goes with it are the bastion.
	ProxyJump         string   `json:"proxy_jump,omitempty" doc:"A bastion through which instances are reached, as USER@HOST:PORT. The user defaults to root, the port to 22. It must allow TCP forwarding; all instances share one connection to it. Its key must be in proxy_jump_host_keys or known_hosts."`
	ProxyJumpKeyFile  string   `json:"proxy_jump_key_file,omitempty" scope:"server" doc:"The private key for the bastion, without a passphrase. An absolute path. Default: the one for the instance."`
	ProxyJumpHostKeys []string `json:"proxy_jump_host_keys,omitempty" doc:"All valid keys of the bastion, in the format of ssh_host_ed25519_key.pub. Default: those in known_hosts."`
	Dir               string   `json:"dir,omitempty" doc:"Muster's directory on the instance. An absolute path. Default: /var/lib/muster."`
	Shutdown          string   `json:"shutdown,omitempty" doc:"Command that ends the machine when the lease is over. Default: poweroff."`
}

// HostSpec is one host of a static provider.
type HostSpec struct {
	Name       string            `json:"name" doc:"Name of the host, and of its offering if offering is empty."`
	Address    string            `json:"address" doc:"A name or an address, with :PORT if it is not 22."`
	User       string            `json:"user,omitempty" doc:"Instead of ssh.user."`
	KeyFile    string            `json:"key_file,omitempty" scope:"server" doc:"Instead of ssh.key_file."`
	HostKeys   []string          `json:"host_keys,omitempty" doc:"All valid keys of the host, in the format of ssh_host_ed25519_key.pub. Default: those in ssh.known_hosts."`
	Offering   string            `json:"offering,omitempty" doc:"Its offering. Empty: an offering of its own, with the detected resources."`
	Price      float64           `json:"price,omitempty" doc:"Of an offering of its own: per hour. Default: 0."`
	Zone       string            `json:"zone,omitempty" doc:"Of an offering of its own."`
	Attributes map[string]string `json:"attributes,omitempty" doc:"Of an offering of its own: node attributes, for constraints."`
}

// ProbeSpec is a command that a new instance must pass.
type ProbeSpec struct {
	Command string   `json:"command,omitempty" doc:"Run by sh as the login user, repeatedly until it exits with 0 or the boot time-out is over. muster node show prints its last stderr."`
	Timeout Duration `json:"timeout,omitempty" zero:"30s" doc:"How long one try may take. Default: 30s."`
}

// OfferingSpec is one kind of instance that a provider of type local or static has.
type OfferingSpec struct {
	Name       string            `json:"name"`
	CPU        float64           `json:"cpu" unit:"cores" doc:"Cores."`
	Memory     Size              `json:"memory" doc:"As 2GiB."`
	Disk       Size              `json:"disk,omitempty" doc:"As 10GiB. Default: 0, for members that ask for none."`
	Price      float64           `json:"price,omitempty" doc:"Per hour, in a currency of your choice. Default: 0."`
	Zone       string            `json:"zone,omitempty"`
	Market     string            `json:"market,omitempty" enum:"on-demand,spot" doc:"Default: on-demand."`
	BootDelay  Duration          `json:"boot_delay,omitempty" doc:"Of local: simulated boot time. Default: 0s."`
	Attributes map[string]string `json:"attributes,omitempty" doc:"Node attributes, for constraints."`
	Devices    []DeviceSpec      `json:"devices,omitempty" doc:"Devices that an instance has, as GPUs."`
	Meta       map[string]string `json:"meta,omitempty" doc:"Node attributes named meta.KEY, which agents cannot set. Those of the pool win."`
	Max        int               `json:"max,omitempty" zero:"no limit of its own" doc:"Of local and qemu: most instances at once. Default: only the pool's limit."`
}

// DeviceSpec is a number of equal devices of an instance.
type DeviceSpec struct {
	Kind   string `json:"kind,omitempty" doc:"Default: gpu."`
	Model  string `json:"model,omitempty" doc:"As A100; jobs may ask for models."`
	Count  int    `json:"count,omitempty" minimum:"1" maximum:"64" zero:"1" doc:"How many there are. Default: 1."`
	Shared bool   `json:"shared,omitempty" doc:"Jobs may request a part of one. The driver isolates members on one device from each other, not Muster."`
}

// StopSpec has a pool stop idle nodes instead of destroying them. A started one comes sooner than a new one,
// and has its images.
type StopSpec struct {
	Most    int      `json:"most,omitempty" doc:"How many nodes may be stopped at once: after idle_timeout a node is stopped instead of destroyed, and started again before a new one is launched. Stopped nodes do not count for max and budget; the cloud charges for their disks, which muster cost does not know. Spot instances are destroyed. The provider must be able to stop instances: types azure, ec2, gce, and openstack with shutdown_ends_billing. Default: 0."`
	Timeout Duration `json:"timeout,omitempty" zero:"24h" doc:"A stopped node is destroyed after this time. Default: 24h."`
}

// PoolSpec is an operator's rule for a set of nodes.
type PoolSpec struct {
	Name         string    `json:"name"`
	Provider     string    `json:"provider" doc:"Name of a provider."`
	Offerings    []string  `json:"offerings,omitempty" doc:"Names of the provider's offerings that may be used. Default: all."`
	Max          int       `json:"max,omitempty" zero:"100" doc:"Most nodes at once. If it is lowered below the number of nodes, surplus nodes are drained, and destroyed when their work has ended. Default: 100."`
	Min          int       `json:"min,omitempty" doc:"Nodes that are kept without work. Default: 0."`
	IdleTimeout  Duration  `json:"idle_timeout,omitempty" zero:"1m" doc:"A node is destroyed after this time without work. Default: 1m."`
	Stop         StopSpec  `json:"stop,omitzero" doc:"Stops idle nodes instead of destroying them. Default: idle nodes are destroyed."`
	BootTimeout  Duration  `json:"boot_timeout,omitempty" zero:"5m" doc:"An instance that has not answered after this time is given up. Default: 5m."`
	Grace        Duration  `json:"grace,omitempty" zero:"1m" doc:"How long a node that served may be out of contact before it is given up: destroyed, and its work placed elsewhere. Default: 1m."`
	Fence        Duration  `json:"fence,omitempty" zero:"half of grace" doc:"Members of jobs with exclusive: true are killed by their agent when no server has contacted the node for this time; less than grace. Default: half of grace."`
	Ready        []string  `json:"ready,omitempty" doc:"A command that checks whether a node is ready for work, in addition to the agent's own checks: run on it before it first serves, after it was out of contact for longer than its grace, after a node failure, and after a quarantine. Exit 0: ready. Any other exit, or none within ready_timeout: retried after a while; a last line 'again after 30s' of its output sets the delay."`
	ReadyTimeout Duration  `json:"ready_timeout,omitempty" zero:"30s" doc:"Time limit of ready. Default: 30s, at most 10m."`
	Sideline     Duration  `json:"sideline,omitempty" zero:"15m" doc:"Quarantine of a node that failed three times within ten minutes, before its readiness is checked again. Default: 15m."`
	MaxLaunching int       `json:"max_launching,omitempty" zero:"as many as max" doc:"How many nodes may be launching or booting at once. Default: as many as max."`
	Spare        int       `json:"spare,omitempty" doc:"Idle nodes that are kept ready in addition to those that waiting work will use. Default: 0."`
	PriceFactor  float64   `json:"price_factor,omitempty" zero:"2" doc:"Highest price that the pool pays when its cheapest fitting offering is unavailable, as a multiple of that one's price, at least 1. More expensive offerings are not used. Default: 2."`
	BootProbe    ProbeSpec `json:"boot_probe,omitzero" doc:"Replaces its provider's."`
	OCIRuntime   string    `json:"oci_runtime,omitempty" zero:"crun, else runc" doc:"Runtime for containers on its nodes: crun, runc or runsc, found in PATH there, the absolute path of another OCI runtime program, or none: no containers. It must be installed on them. Running agents keep their setting until they restart. Default: crun, else runc."`
	// RuntimeHoles says what becomes of nodes whose program has known holes.
	RuntimeHoles string `json:"runtime_holes,omitempty" enum:"warn,refuse" zero:"warn" doc:"Policy for nodes whose crun or runc has known vulnerabilities. warn: muster node show names them and the version that fixes them. refuse: no containers run there. Running agents keep their setting until they restart. Default: warn."`
	// AllowAddresses and InputLimit are about what jobs have nodes fetch.
	AllowAddresses []string `json:"allow_addresses,omitempty" doc:"Addresses and prefixes, as 127.0.0.1/32, from which inputs and images may come although they are loopback, link-local or cloud metadata addresses. Running agents keep their setting until they restart. Default: none."`
	// Network is for networks that differ from the server's.
	Network    *NetworkConfig `json:"network,omitempty" doc:"Replaces the server's network for its nodes, all fields of it. Running agents keep their setting until they restart. Default: the server's."`
	InputLimit Size           `json:"input_limit,omitempty" zero:"4GiB" doc:"Largest size of an input from a URL. All inputs of one allocation together may have 16 times that size. Running agents keep their setting until they restart. Default: 4GiB."`
	Lease      Duration       `json:"lease,omitempty" zero:"1h where a shutdown ends billing, else none" doc:"A node shuts itself down when no server has contacted it for this time; held nodes do not. Of types exec and openstack with shutdown_ends_billing: the machine shuts down. Of local: the agent and its work end. At least 2m. Default: 1h if a shutdown ends billing, else none."`
	Budget     BudgetSpec     `json:"budget,omitzero" doc:"Budget of the pool. Beyond it nothing is launched; running work goes on."`
	// Placement is how members are put on its nodes, Meta what is told of them.
	Placement string            `json:"placement,omitempty" enum:"binpack,spread" doc:"binpack: the fullest node that fits, so that whole nodes become idle. spread: the emptiest node, so that members disturb each other least. Default: binpack."`
	Meta      map[string]string `json:"meta,omitempty" doc:"Attributes of its nodes named meta.KEY, which agents cannot set."`
	// Volumes are what containers may see of the file systems of its nodes.
	Volumes map[string]PoolVolume `json:"volumes,omitempty" doc:"Directories of its nodes that containers may have mounted, by name. Running agents keep their setting until they restart. Default: none."`
}

// PoolVolume is a directory of a pool's nodes that containers may have mounted.
type PoolVolume struct {
	Path     string `json:"path" doc:"Absolute path of a directory that is on every node of the pool. No part of it is a symbolic link."`
	Writable bool   `json:"writable,omitempty" doc:"Jobs may ask to write there. Default: read-only."`
}

// BudgetSpec is what a pool may cost, in the currency that prices are given in.
type BudgetSpec struct {
	PerHour  float64 `json:"per_hour,omitempty" zero:"no limit" doc:"All its nodes per hour, launching ones included, spot nodes at their highest price. Default: no limit."`
	PerMonth float64 `json:"per_month,omitempty" zero:"no limit" doc:"All its nodes in a calendar month (UTC): the cost so far, one more hour of all nodes, and one hour of a new node must stay below it. Default: no limit."`
}

// RegistrySpec is a registry of images. Its credentials stay with the server: a
// node gets a token for each image that it pulls.
type RegistrySpec struct {
	Host            string        `json:"host" doc:"As in image names: docker.io, ghcr.io, registry.example.org:5000."`
	Namespaces      []string      `json:"namespaces,omitempty" doc:"Only images of jobs and environments in these namespaces are pulled with this entry; for others it does not exist. A host may have several entries whose namespaces differ, and one without namespaces for the rest. Default: all."`
	Username        string        `json:"username,omitempty"`
	Password        muster.Secret `json:"password,omitzero" doc:"Password or token. Better use password_file."`
	PasswordFile    string        `json:"password_file,omitempty" doc:"A file with the password, read whenever it is needed. An absolute path."`
	Identity        string        `json:"identity,omitempty" enum:"ecr,gcp,azure" doc:"In place of username and password: short-lived credentials that the cloud gives to the server's own identity (its environment, files or machine). ecr: Amazon ECR. gcp: Google Artifact Registry. azure: Azure Container Registry."`
	Mirror          string        `json:"mirror,omitempty" doc:"Mirror that is tried first for this registry's images, as HOST or HOST/PREFIX. The registry itself is used for what it lacks. Credentials and insecure for it are those of the entry with its host."`
	Insecure        bool          `json:"insecure,omitempty" doc:"Allow plain HTTP, and a registry on the node itself (localhost)."`
	SendCredentials bool          `json:"send_credentials,omitempty" doc:"For registries without tokens: send username and password to nodes. Without this such a registry is not used with credentials."`
}

// ImageCacheConfig is the server's cache of images.
type ImageCacheConfig struct {
	Size  Size     `json:"size,omitempty" zero:"no cache" doc:"Disk space of the cache, below data_dir. What was used the longest ago is deleted first. Default: no cache."`
	Fresh Duration `json:"fresh,omitempty" zero:"1m" doc:"How long the answer of a registry counts: what a tag means, and that the image may be pulled. From 1s to 24h. Default: 1m."`
}

// Values of RegistrySpec.Identity.
const (
	// IdentityECR gets an authorization token of Amazon ECR.
	IdentityECR = "ecr"
	// IdentityGCP shows an access token of Google Cloud.
	IdentityGCP = "gcp"
	// IdentityAzure exchanges a token of Microsoft Entra ID at an Azure Container Registry.
	IdentityAzure = "azure"
)

// Types of providers.
const (
	// ProviderLocal has agent processes on the server's host for instances.
	ProviderLocal = "local"
	// ProviderStatic has hosts of the operator's own.
	ProviderStatic = "static"
	// ProviderExec asks a program.
	ProviderExec = "exec"
)

// RuntimeNone is for nodes that make no containers.
const RuntimeNone = "none"

// How members are put on the nodes of a pool.
const (
	PlacementBinpack = "binpack"
	PlacementSpread  = "spread"
)

// HolesRefuse is for runtime_holes of a pool: no containers by a program with known holes.
const HolesRefuse = "refuse"

// Defaults that an agent and other systems' APIs know without the file.
const (
	// DefaultMemoryReserve is what Poseidon sets aside for a runner.
	DefaultMemoryReserve Size = 16 << 20
	// DefaultInputLimit is how large an input from a URL may be, the same as one that is uploaded.
	DefaultInputLimit Size = 4 << 30
)
