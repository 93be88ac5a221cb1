package agent

import (
	"cmp"
	"fmt"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

// Protocol is the version that this build speaks.
const Protocol = 1

// Headers of the protocol.
const (
	// HeaderProtocol is the Protocol that a Desired is written in. An agent obeys its own and the
	// one before. Client sends the lower one of its own and the agent's.
	HeaderProtocol = "Muster-Protocol"
	// HeaderOutputStart is the offset of the first byte of an output answer,
	// present only if bytes between the offset asked for and it were dropped.
	HeaderOutputStart = "Muster-Output-Start"
	// HeaderOutputFinal is "true" on an output answer whose end is the stream's end for ever.
	HeaderOutputFinal = "Muster-Output-Final"
)

// MaxDesired bounds the JSON of one Desired in bytes. Absence means nothing,
// so a larger set is sent in several parts with one fence.
const MaxDesired = 64 << 20

// Streams of a sandbox's output.
const (
	Stdout = "stdout"
	Stderr = "stderr"
)

// Fence orders everything that a server sends. The agent keeps the highest
// that it obeyed and refuses lower ones; another cluster's is refused until an operator releases
// the node. A restored backup has a higher epoch.
type Fence struct {
	Cluster string `json:"cluster"`
	Epoch   uint64 `json:"epoch"`
	Term    uint64 `json:"term"`
	Index   uint64 `json:"index"`
}

// Compare orders fences of one cluster by epoch, term, index.
func (f Fence) Compare(o Fence) int {
	return cmp.Or(cmp.Compare(f.Epoch, o.Epoch), cmp.Compare(f.Term, o.Term), cmp.Compare(f.Index, o.Index))
}

func (f Fence) String() string {
	return fmt.Sprintf("cluster %s epoch %d term %d index %d", f.Cluster, f.Epoch, f.Term, f.Index)
}

// Hello is what an agent says of itself.
type Hello struct {
	Node     muster.NodeID `json:"node"`
	Protocol int           `json:"protocol"`
	Version  string        `json:"version"`
	// Run is drawn at each start of the agent process.
	Run string `json:"boot"`
	Pid int    `json:"pid"`
	// Fence is the highest that was obeyed; zero on an agent that no cluster has used.
	Fence      Fence             `json:"fence"`
	Capacity   muster.Resources  `json:"capacity"`
	Attributes map[string]string `json:"attributes,omitempty"`
	Runtimes   []string          `json:"runtimes"`
	// Problems are sentences about what this node cannot do, for operators.
	Problems []string `json:"problems,omitempty"`
	// Allocs is how many allocations it holds, ended ones included.
	Allocs int `json:"allocs"`
	// TakesImages says that it takes images from the server's cache: PullGrant.Digest.
	TakesImages bool `json:"takes_images,omitempty"`
}

// Desired is what the server wants of a node: the whole set first in a contact, then parts of it. What is
// absent goes on as it is: only desired stop ends, only Forget deletes.
type Desired struct {
	Fence  Fence          `json:"fence"`
	Allocs []DesiredAlloc `json:"allocs"`
	// Forget names ended allocations whose result, output and declared outputs
	// are stored as of Fence.Index. The agent deletes all of them.
	Forget []muster.AllocID `json:"forget,omitempty"`
	// Named are the allocations whose stop has a cause in the log. A set that
	// stops more than half of five or more running sandboxes is refused unless each is named here.
	Named []muster.AllocID `json:"named,omitempty"`
	// LeaseMillis is how long the node may hear no set before it ends itself; 0: for ever. A
	// server sends a set, if only an empty one, at least every SetEveryMillis.
	LeaseMillis int64 `json:"lease_ms,omitempty"`
	// GuardMillis is how long exclusive allocations may run from Tick on; then the agent kills them. Tick is of
	// the last answer that this contact has had: what lies between is the way of the sets. Either 0: nothing is renewed.
	GuardMillis int64 `json:"guard_ms,omitempty"`
	Tick        int64 `json:"tick,omitempty"`
}

// SetEveryMillis is the longest time between two sets that a node is sent, in milliseconds.
const SetEveryMillis = 30_000

// DesiredAlloc is one allocation that the server wants.
type DesiredAlloc struct {
	ID      muster.AllocID      `json:"id"`
	Desired muster.AllocDesired `json:"desired"`
	// Spec may be left out once a report has shown that the agent holds the allocation.
	Spec *AllocSpec `json:"spec,omitempty"`
	// Frozen: its sandbox is to stand still from when it is ready on, and uses no processor then. The first set
	// without it lets it go on, and so does a connection to its init, for as long as that lasts. One that
	// cannot be frozen goes on: the report tells which do stand.
	Frozen bool `json:"frozen,omitempty"`
}

// DesiredAnswer says what was done with a Desired.
type DesiredAnswer struct {
	// Unknown are allocations sent without spec that the agent does not hold.
	Unknown []muster.AllocID `json:"unknown,omitempty"`
	// Forgotten are allocations sent to run that the agent was told to forget
	// before: they are not run again.
	Forgotten []muster.AllocID `json:"forgotten,omitempty"`
	// NotEnded were to be forgotten but have not ended: they are kept.
	NotEnded []muster.AllocID `json:"not_ended,omitempty"`
	// Tick is the agent's clock, in microseconds of its own; above 0.
	Tick int64 `json:"tick,omitempty"`
}

// Problem is the JSON of an error answer whose body has no code.
type Problem struct {
	Message string `json:"message"`
}

// Refusal is the JSON of a 409 answer: the agent understood and will not obey.
type Refusal struct {
	// Code is one of the Refused constants.
	Code    string `json:"code"`
	Message string `json:"message"`
	// Fence is the highest that the agent has obeyed.
	Fence Fence `json:"fence"`
}

func (r *Refusal) Error() string { return r.Message }

// Refusal codes.
const (
	RefusedFence    = "fence"
	RefusedCluster  = "cluster"
	RefusedMassStop = "mass-stop"
	RefusedProtocol = "protocol"
)

// AllocSpec is all that an agent needs to run an allocation. Template is the job's own: a field that is
// added to it reaches agents by itself. Where the wire has another form than a job's file, the field stands
// here as well and counts; of Template, the link leaves out what only the scheduler needs.
type AllocSpec struct {
	Namespace muster.Namespace `json:"namespace"`
	Job       string           `json:"job"`
	JobUID    muster.JobUID    `json:"job_uid"`
	Version   uint64           `json:"version"`
	Index     int              `json:"index"`
	Count     int              `json:"count"`
	Attempt   int              `json:"attempt"`

	// An empty Workdir is a fresh one of its own, or the image's. Isolation is demanded: with less the agent
	// does not start it (class node, reason no-runtime). An empty Network is bridge.
	api.Template
	Resources muster.Resources `json:"resources"`
	Inputs    []Input          `json:"inputs,omitempty"`
	// Ready says how it shows that it is ready; nil: it is as soon as it runs.
	Ready *Readiness `json:"ready,omitempty"`

	// PullScope is Puller.Scope of the image for the allocation's namespace; empty: the namespace
	// does not matter.
	PullScope string `json:"pull_scope,omitempty"`

	PidsLimit int             `json:"pids_limit,omitempty"` // 0: the agent's default
	CPUMax    muster.MilliCPU `json:"cpu_max,omitempty"`    // 0: no limit
	// Exclusive: it begins only while a guard holds (see Desired.GuardMillis), and is killed when that lapses.
	Exclusive bool `json:"exclusive,omitempty"`
	// Cores that it runs on, counted among those that the agent may use; none: all.
	Cores []int `json:"cores,omitempty"`
	// Devices that it was granted. A container gets these and no others; a process of the node sees all.
	Devices []muster.DevicePlace `json:"devices,omitempty"`

	TimeoutMillis     int64    `json:"timeout_ms,omitempty"`    // 0 = none
	KillGraceMillis   int64    `json:"kill_grace_ms,omitempty"` // TERM to KILL
	OutputLimit       int64    `json:"output_limit,omitempty"`  // bytes kept of each stream
	Outputs           []Output `json:"outputs,omitempty"`
	GiveUpInputMillis int64    `json:"give_up_input_ms,omitempty"`
}

// Puller is for whom the allocation's image is pulled.
func (s *AllocSpec) Puller() Puller {
	if s.PullScope == "" {
		return Puller{}
	}
	return Puller{s.Namespace, s.PullScope}
}

// Readiness is a command that the agent runs in a sandbox, again and again, until it exits with 0: then the allocation is ready.
type Readiness struct {
	Command []string `json:"command"`
	// IntervalMillis is the wait after one that did not pass; 0: 250 ms.
	IntervalMillis int64 `json:"interval_ms,omitempty"`
	// TimeoutMillis ends one that takes longer; 0: 5 s.
	TimeoutMillis int64 `json:"timeout_ms,omitempty"`
	// GiveUpMillis after its start an allocation that is not ready is stopped, and has failed: class user,
	// reason not-ready. 0: never.
	GiveUpMillis int64 `json:"give_up_ms,omitempty"`
}

// Input is a file put into the work directory: Content, or Digest ("sha256:"
// and 64 hexadecimal digits) with (fetched by the agent) or without (pushed by the server) URL.
type Input struct {
	Path    string `json:"path"`
	Content []byte `json:"content,omitempty"`
	Digest  string `json:"digest,omitempty"`
	URL     string `json:"url,omitempty"`
	Mode    uint32 `json:"mode,omitempty"`
}

// Output is a path kept after the command succeeded.
type Output struct {
	Path     string `json:"path"`
	Optional bool   `json:"optional,omitempty"`
}

// Report is what is true on a node. The first on a stream carries every
// allocation that the agent holds (Whole); later ones those that changed. One
// is sent at least every HeartbeatMillis even if nothing changed. An allocation
// is in reports only once it is on the node's disk, so that a restarted agent knows it too.
type Report struct {
	Run string `json:"boot"`
	// Seq counts the reports of this run of the agent from 1.
	Seq    uint64        `json:"seq"`
	Whole  bool          `json:"whole,omitempty"`
	Allocs []AllocReport `json:"allocs,omitempty"`
	// Needs are digests of inputs that allocations wait for: all of them, in
	// whole reports, in heartbeats, and in others when one was added.
	Needs []string `json:"needs,omitempty"`
	// NeedGrants are the images that allocations wait to pull, as GrantNeed names them, in the same
	// reports.
	NeedGrants []string `json:"need_grants,omitempty"`
	// Used is the sum over running sandboxes; in heartbeats.
	Used *Usage `json:"used,omitempty"`
	// Free disk of the agent's directory in bytes; in heartbeats.
	FreeDisk int64 `json:"free_disk,omitempty"`
	// Condition is what the agent's checks say; in whole reports, in heartbeats, and in others when it changed. Nil: as before.
	Condition *Condition `json:"condition,omitempty"`
	// Images are at hand: references, and digests of those that none means, the last used first, at most MaxImages; in whole
	// reports, and in heartbeats after they changed. Nil: as before.
	Images *[]string `json:"images,omitempty"`
}

// MaxImages bounds the images that a report names.
const MaxImages = 64

// AllocReport is what is true of one allocation. Times are the node's clock, microseconds.
type AllocReport struct {
	ID       muster.AllocID     `json:"id"`
	Status   muster.AllocStatus `json:"status"` // starting, running, ended
	Outcome  muster.Outcome     `json:"outcome,omitempty"`
	ExitCode int                `json:"exit_code,omitempty"`
	Signal   string             `json:"signal,omitempty"`
	Failure  *muster.Failure    `json:"failure,omitempty"`
	Started  muster.Time        `json:"started,omitempty"`
	// Ready is when it became ready, in running reports; 0: it is not, or the agent is older than this field.
	Ready muster.Time `json:"ready,omitempty"`
	// Frozen: its sandbox stands still.
	Frozen bool         `json:"frozen,omitempty"`
	Ended  muster.Time  `json:"ended,omitempty"`
	Stdout StreamReport `json:"stdout,omitzero"`
	Stderr StreamReport `json:"stderr,omitzero"`
	// OutputLost is how many bytes of output the node's disk would not take;
	// what the limit dropped is not among them.
	OutputLost int64 `json:"output_lost,omitempty"`
	// Detail is what a start is at, for people; it changes at most every few seconds.
	Detail string `json:"detail,omitempty"`
	// Image is the digest of the image that it was started from.
	Image string `json:"image,omitempty"`
	// Outputs are the declared outputs, collected and ready to be read; set when ended with success.
	Outputs []OutputReport `json:"outputs,omitempty"`
	Usage   *Usage         `json:"usage,omitempty"`
}

// StreamReport tells how much a stream has produced.
type StreamReport struct {
	// Size is all that was ever written; Start the offset of the oldest byte still kept.
	Size  int64 `json:"size,omitempty"`
	Start int64 `json:"start,omitempty"`
	// Inline is the whole stream when it has ended and is at most InlineLimit bytes.
	Inline []byte `json:"inline,omitempty"`
}

// OutputReport is one collected output.
type OutputReport struct {
	Path string `json:"path"`
	Size int64  `json:"size"` // of the tar
}

// Usage is what sandboxes used.
type Usage struct {
	CPUMicros int64        `json:"cpu_us"` // since start
	Memory    muster.Bytes `json:"memory"` // now
}

// InlineLimit is the largest stream that travels inside a report.
const InlineLimit = 1024

// HeartbeatMillis is the longest silence of a healthy report stream, in milliseconds.
const HeartbeatMillis = 5000

// Millis is a duration of the wire, which has them in milliseconds.
func Millis(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }
