package agent

import (
	"context"
	"net"
	"time"

	"github.com/musterhq/muster"
)

// Runtime makes sandboxes. Implementations: process (own process group),
// oci (containers), fake (tests). Each passes runtimetest.
//
// A sandbox outlives the agent: Start's result must be found again by Attach
// in another process from nothing but its directory. All methods may be called at once from
// many goroutines, for different directories; calls for one directory are made one at a time.
type Runtime interface {
	// Name is what users ask for by name and `muster node show` prints.
	Name() string
	// Check probes whether the runtime works on this node; the error is a sentence for operators.
	Check(ctx context.Context) error
	// Start makes the sandbox and starts its command. It returns when the
	// command runs or cannot: then the error is a *muster.Failure with the class and a sentence that names what is wrong.
	// ctx bounds the start only. On error nothing of it is left running.
	Start(ctx context.Context, c SandboxConfig) (Sandbox, error)
	// Attach finds the sandbox of dir after the agent was restarted, running or
	// ended. ErrNoSandbox if none was ever started there.
	Attach(ctx context.Context, dir string) (Sandbox, error)
	// Remove ends whatever of dir's sandbox still runs and deletes what the
	// runtime made (cgroups, mounts), but not dir. Safe to call twice, and on a sandbox that never was.
	Remove(ctx context.Context, dir string) error
}

// ImageRuntime is a Runtime for allocations with an image; the others are for
// those without.
type ImageRuntime interface {
	Runtime
	RunsImages()
}

// Versioned is a Runtime that says what it works with: "crun 1.8.1". Asked after Check.
type Versioned interface {
	Version() string
}

// Limited is a Runtime that knows of things that it cannot do on this node,
// though it works: sentences for operators. Asked after Check.
type Limited interface {
	Problems() []string
}

// Isolating is a Runtime that says how much lies between its sandboxes and the node. Asked after Check. Others
// are taken for muster.IsolationProcess.
type Isolating interface {
	Isolation() muster.Isolation
}

// SandboxConfig is what a runtime needs to start a sandbox.
type SandboxConfig struct {
	ID muster.AllocID
	// Dir is the sandbox's own directory (0700), made by the agent, kept until
	// the result is acknowledged. The runtime keeps all its files there. The names
	// alloc.jsonl, work, tmp and outputs are the agent's own.
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

// Container is what a sandbox from an image needs beside the rest of its config,
// in which Command, Env and Work are what image and job together say, as seen from inside.
type Container struct {
	Image *Image
	// User that runs the command: as in an image's configuration; empty: root.
	User string
	// Network is nil for the host's.
	Network *Network
	// Shared is a directory of the node that is seen inside at SharedAt: the inputs and outputs of a job. Empty: none.
	Shared, SharedAt string
	// Volumes are directories inside that begin empty and are not part of the image's file system.
	Volumes []string
	// StopSignal asks the command to end; 0: TERM.
	StopSignal int
	Hostname   string
}

// Image is an image on this node, unpacked.
type Image struct {
	// Ref is how it was asked for; Digest what that was, "sha256:" and 64 digits.
	Ref, Digest string
	// Root is a directory below which Layers lie, the topmost first, relative to it: names are short enough for
	// all to fit into one mount option.
	Root   string
	Layers []string
	Config ImageConfig
	// Release lets the node delete it; nil if there is nothing to let go. Called once.
	Release func()
}

// Network is a network of a sandbox's own.
type Network struct {
	// Namespace is the path of its network namespace, valid in this process until the sandbox runs. Empty: one with nothing but a loopback, which the runtime makes.
	Namespace string
	// Address of the sandbox; empty: it has none but the loopback's.
	Address string
	// DNS are lines of resolv.conf; Hosts of /etc/hosts, beside localhost.
	DNS, Hosts []string
}

// Sandbox is one running or ended sandbox.
type Sandbox interface {
	// Done is closed when the command has ended, its output is whole on disk and Result is known.
	Done() <-chan struct{}
	// Result is valid after Done.
	Result() Result
	// Started is when the command was started (node clock).
	Started() time.Time
	// Stop asks the command to end: TERM to its process group, KILL after grace. It
	// does not wait; Done tells. Calling again with a shorter grace shortens it.
	Stop(grace time.Duration)
	// Freeze stops everything in it where it stands, init included, until Thaw; it may be stopped and removed as it is,
	// and what it uses is still measured. It returns when all of it stands; on an error it goes on. ErrNoFreezer, or
	// ErrNoSandbox of one that is stopping or has ended. Freezing twice is fine.
	Freeze(ctx context.Context) error
	// Thaw lets it go on, in about 0.1 ms. Fine where nothing is frozen.
	Thaw() error
	// Frozen reports whether it was told to stand, by this agent or one before it.
	Frozen() bool
	// Usage is what it has used so far; zero if not to be had.
	Usage() Usage
	// OOMKills is that of Usage alone, for those who ask often.
	OOMKills() int64
	// Init connects to the sandbox's init, see package initwire; it has no part in what is said there.
	// After the end: ErrNoSandbox.
	Init(ctx context.Context) (net.Conn, error)
	// Output opens a stream ("stdout" or "stderr") for reading at a byte offset.
	Output(stream string) OutputLog
	// Close gives up what the agent holds of it (descriptors); the sandbox goes on.
	Close() error
}

// OutputLog reads one stream of a sandbox while it is written and after.
type OutputLog interface {
	// Bounds are the offset of the oldest byte kept and the end so far.
	Bounds() (start, end int64, err error)
	// ReadAt reads at a stream offset. Before start: ErrOutputDropped. At the
	// end: 0, io.EOF, which is final only when the sandbox is Done.
	ReadAt(p []byte, offset int64) (int, error)
}

// Result is how a sandbox ended.
type Result struct {
	ExitCode int    // valid if Signal is empty and Failure does not say otherwise
	Signal   string // "SIGKILL"; empty if it exited
	// Failure is set when it did not end by its own exit 0: exit, signal, timeout,
	// out-of-memory, sandbox-died (init gone without a result: class node), …
	Failure *muster.Failure
	// Stopped: it ended because Stop was called.
	Stopped        bool
	Started, Ended time.Time
	// OutputLost is how many bytes of output the node's disk would not take (not
	// those that OutputLimit dropped).
	OutputLost int64
}

// Usage is what a sandbox has used. Memory is what it uses now; after its end,
// the most that one of its processes had.
type Usage struct {
	CPU    time.Duration
	Memory muster.Bytes
	// Pids are the processes and threads now; 0 if not to be had. PidsMax is how many it may have; 0: no limit, or not known.
	Pids, PidsMax int
	// Disk is what its writable layer holds, DiskMax what that may; 0 if it has none, or not to be had.
	Disk, DiskMax muster.Bytes
	// OOMKills is how many of its processes the kernel has killed for want of memory.
	OOMKills int64
}
