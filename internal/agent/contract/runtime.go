package contract

import (
	"context"
	"time"

	"github.com/musterhq/muster"
)

// Runtime makes sandboxes. Implementations: process (own process group), oci (containers), fake
// (tests). Each passes runtimetest.
//
// A sandbox outlives the agent: Start's result must be found again by Attach in another process
// from nothing but its directory. All methods may be called at once from many goroutines, for
// different directories; calls for one directory are made one at a time.
type Runtime interface {
	// Name is the name that users ask for and `muster node show` prints.
	Name() string
	// Check probes whether the runtime works on this node; the error is a sentence for operators.
	Check(ctx context.Context) error
	// Start makes the sandbox and starts its command. It returns when the command runs or cannot:
	// then the error is a *muster.Failure with the class and a sentence that names what is wrong.
	// ctx bounds the start only. On error nothing of it is left running.
	Start(ctx context.Context, c SandboxConfig) (Sandbox, error)
	// Attach finds the sandbox of dir after the agent was restarted, running or ended. ErrNoSandbox
	// if none was ever started there.
	Attach(ctx context.Context, dir string) (Sandbox, error)
	// Remove ends whatever of dir's sandbox still runs and deletes what the runtime made (cgroups,
	// mounts), but not dir. Safe to call twice, and on a sandbox that never was.
	Remove(ctx context.Context, dir string) error
}

// ImageRuntime is a Runtime for allocations with an image; any other is for those without.
type ImageRuntime interface {
	Runtime
	RunsImages()
}

// Versioned is a Runtime that says which program it uses: "crun 1.8.1". It is asked after Check.
type Versioned interface {
	Version() string
}

// Limited is a Runtime that works, and knows what it cannot do on this node: sentences for
// operators. It is asked after Check.
type Limited interface {
	Problems() []string
}

// Isolating is a Runtime that says how strongly its sandboxes are isolated from the node. It is
// asked after Check. Any other counts as muster.IsolationProcess.
type Isolating interface {
	Isolation() muster.Isolation
}

// Sweeper is a Runtime that finds its sandboxes even when somebody has deleted their directories.
type Sweeper interface {
	// EndForgotten ends all of this agent's sandboxes that are not known, and returns how many still
	// ran. sandboxes is the directory below which each had its own. It is called before any Start.
	EndForgotten(ctx context.Context, sandboxes string, known []muster.AllocID) (ended int, err error)
}

// SandboxConfig is what a runtime needs to start a sandbox.
type SandboxConfig struct {
	ID muster.AllocID
	// Dir is the sandbox's own directory (0700), made by the agent, kept until the result is
	// acknowledged. The runtime keeps all its files there. The names alloc.jsonl, work, tmp and
	// outputs are the agent's own.
	Dir string
	// Work is the absolute directory where the command starts.
	Work    string
	Command []string
	// Env is the whole environment: nothing is inherited.
	Env       []string
	Resources muster.Resources
	Limits    Limits
	// Cores that it runs on, counted among those that the agent may use; none: all.
	Cores []int
	// Container is what a container adds; nil for a process of the node.
	Container *Container
	// Timeout ends the command; 0 = none. KillGrace is the time from TERM to KILL.
	Timeout, KillGrace time.Duration
	// OutputLimit is how many bytes of each stream are kept; the oldest go first.
	OutputLimit int64
}

// Limits beside those that scheduling counts. Zero: the runtime's default.
type Limits struct {
	// Pids is how many processes and threads it may have.
	Pids int
	// CPUMax is how much processor time it gets even where more is idle; 0: no limit.
	CPUMax muster.MilliCPU
}

// Container is what a sandbox from an image needs beside the rest of its config, in which Command,
// Env and Work are what image and job together say, as seen from inside.
type Container struct {
	Image *Image
	// User that runs the command: as in an image's configuration; empty: root.
	User string
	// Network is nil for the host's.
	Network *Network
	// Shared is a directory of the node that is seen inside at SharedAt: the inputs and outputs of
	// a job. Empty: none.
	Shared, SharedAt string
	// Volumes are directories inside that begin empty and are not part of the image's file system.
	Volumes []string
	// StopSignal asks the command to end; 0: TERM.
	StopSignal int
	Hostname   string
	// Devices are what it gets of the node's devices; nil: none.
	Devices *Devices
	// Mounts are directories of the node and file systems in memory that it has beside its image. One
	// below another comes after it.
	Mounts []Mount
}

// Mount is a directory that a container sees at Path: Source on the node, or with no Source a file
// system in memory of the size Tmpfs.
type Mount struct {
	Name, Path, Source string
	Writable           bool
	Tmpfs              muster.Bytes
}
