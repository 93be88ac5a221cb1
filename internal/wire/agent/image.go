package agent

import "github.com/musterhq/muster"

// UpgradeInit is the protocol that POST /v1/allocs/{id}/init upgrades to.
const UpgradeInit = "muster-init"

// HeaderOOMKills is of the answer to that: how many processes of the sandbox the kernel had killed for want of memory
// before anything of this tunnel reached its init.
const HeaderOOMKills = "Muster-Oom-Kills"

// HeaderHandOver on that request says that the agent may answer with the connection to init itself, as a descriptor
// that comes with the answer, instead of carrying bytes; on the answer, that it has done so. Only where both ends of the agent's socket are on
// one machine. The connection to the agent then says no more than that the tunnel is in use: it is in use until that is closed.
const HeaderHandOver = "Muster-Hand-Over"

// Grant is the right to pull one image for a short time: what the server makes of its own
// credentials, which stay with it.
type Grant struct {
	// Ref is the reference that the report named.
	Ref string `json:"ref"`
	// Pull is where it is pulled from, if that is not Ref: a mirror, or a digest.
	Pull string `json:"pull,omitempty"`
	// Authorization is the header's value for requests to that repository; empty: none is needed.
	Authorization string `json:"authorization,omitempty"`
	// Insecure allows plain HTTP.
	Insecure bool `json:"insecure,omitempty"`
	// Until is when it ends, by the server's clock; 0: not known.
	Until muster.Time `json:"until,omitempty"`
	// Failure is set instead when there is none to be had.
	Failure *muster.Failure `json:"failure,omitempty"`
}

// Image is one image in a node's cache.
type Image struct {
	Ref    string       `json:"ref"`
	Digest string       `json:"digest"`
	Size   muster.Bytes `json:"size"` // unpacked, shared layers counted for each
	Layers int          `json:"layers"`
	InUse  int          `json:"in_use"` // sandboxes
	Used   muster.Time  `json:"used"`   // last
}

// ImageList is a node's cache.
type ImageList struct {
	Images []Image      `json:"images"`
	Used   muster.Bytes `json:"used"`
	Limit  muster.Bytes `json:"limit"`
}

// PullImage asks for an image ahead of its use.
type PullImage struct {
	Ref string `json:"ref"`
}

// PullProgress is one line of a pull; the last has Digest or Failure.
type PullProgress struct {
	Done       int64           `json:"done,omitempty"`
	Total      int64           `json:"total,omitempty"`
	Layers     int             `json:"layers,omitempty"`
	LayersDone int             `json:"layers_done,omitempty"`
	Digest     string          `json:"digest,omitempty"`
	Failure    *muster.Failure `json:"failure,omitempty"`
}

// Pruned is what a prune deleted.
type Pruned struct {
	Freed muster.Bytes `json:"freed"`
}

// Stats are what one sandbox uses now.
type Stats struct {
	At        muster.Time  `json:"at"`
	CPUMicros int64        `json:"cpu_us"`
	Memory    muster.Bytes `json:"memory"`
	Pids      int          `json:"pids,omitempty"`
	Disk      muster.Bytes `json:"disk,omitempty"`
	// OOMKills is how many of its processes the kernel has killed for want of memory so far.
	OOMKills int64 `json:"oom_kills,omitempty"`
	// The limits that hold, asked for or not; 0: none, or not known.
	PidsMax int          `json:"pids_max,omitempty"`
	DiskMax muster.Bytes `json:"disk_max,omitempty"`
}
