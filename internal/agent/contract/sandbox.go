package contract

import (
	"context"
	"net"
	"time"

	"github.com/musterhq/muster"
)

// Sandbox is one running or ended sandbox. What only some can do are interfaces of their own:
// Freezer, Reachable and OOMCounter. All methods may be called at once.
type Sandbox interface {
	// Done is closed when the command has ended, its output is whole on disk and Result is known.
	Done() <-chan struct{}
	// Result is valid after Done.
	Result() Result
	// Started is when the command was started, by the node's clock.
	Started() time.Time
	// Stop asks the command to end: TERM to its process group, KILL after grace. It does not wait;
	// Done tells. Calling again with a shorter grace shortens it.
	Stop(grace time.Duration)
	// Usage is what the sandbox has used so far; zero if that cannot be told.
	Usage() Usage
	// Output opens a stream ("stdout" or "stderr") for reading at a byte offset.
	Output(stream string) OutputLog
	// Close gives up what the agent holds of the sandbox (descriptors); the sandbox goes on.
	Close() error
}

// Freezer is a Sandbox that can be frozen. Of any other, Freeze and Thaw say ErrNoFreezer.
type Freezer interface {
	// Freeze stops everything in the sandbox where it stands, init included, until Thaw. A frozen
	// sandbox can be stopped and removed, and its usage is still measured. Freeze returns when all
	// of it stands; on an error it runs on. The error is ErrNoFreezer, or ErrNoSandbox of one that
	// is stopping or has ended. Freezing twice is fine.
	Freeze(ctx context.Context) error
	// Thaw lets the sandbox run again, in about 0.1 ms. It is fine where nothing is frozen.
	Thaw() error
	// Frozen reports whether it was told to stand, by this agent or one before it.
	Frozen() bool
}

// Reachable is a Sandbox whose init can be connected to: executions, files and ports go through it.
type Reachable interface {
	// Init connects to the sandbox's init, see package initwire; the runtime has no part in what is
	// said there. After the end the error is ErrNoSandbox.
	Init(ctx context.Context) (net.Conn, error)
}

// OOMCounter is a Sandbox that tells Usage.OOMKills alone, at less cost.
type OOMCounter interface {
	OOMKills() int64
}

// Freeze freezes a sandbox; ErrNoFreezer if it is no Freezer.
func Freeze(ctx context.Context, s Sandbox) error {
	if f, ok := s.(Freezer); ok {
		return f.Freeze(ctx)
	}
	return ErrNoFreezer
}

// Thaw lets a sandbox run again; ErrNoFreezer if it is no Freezer.
func Thaw(s Sandbox) error {
	if f, ok := s.(Freezer); ok {
		return f.Thaw()
	}
	return ErrNoFreezer
}

// Frozen reports whether a sandbox was told to stand.
func Frozen(s Sandbox) bool {
	f, ok := s.(Freezer)
	return ok && f.Frozen()
}

// Connect connects to a sandbox's init; the error is ErrNoInit if it is not Reachable.
func Connect(ctx context.Context, s Sandbox) (net.Conn, error) {
	if r, ok := s.(Reachable); ok {
		return r.Init(ctx)
	}
	return nil, ErrNoInit
}

// OOMKills is how many of the sandbox's processes the kernel has killed for want of memory.
func OOMKills(s Sandbox) int64 {
	if c, ok := s.(OOMCounter); ok {
		return c.OOMKills()
	}
	return s.Usage().OOMKills
}

// OutputLog reads one stream of a sandbox while it is written and after.
type OutputLog interface {
	// Bounds are the offset of the oldest byte kept and the end so far.
	Bounds() (start, end int64, err error)
	// ReadAt reads at a stream offset. Before start: ErrOutputDropped. At the end: 0, io.EOF, which
	// is final only when the sandbox is Done.
	ReadAt(p []byte, offset int64) (int, error)
}

// Result is how a sandbox ended.
type Result struct {
	ExitCode int    // valid if Signal is empty and Failure does not say otherwise
	Signal   string // "SIGKILL"; empty if it exited
	// Failure is set when it did not end by its own exit 0: exit, signal, timeout, out-of-memory,
	// sandbox-died (init gone without a result: class node), …
	Failure *muster.Failure
	// Stopped: it ended because Stop was called.
	Stopped        bool
	Started, Ended time.Time
	// OutputLost is how many bytes of output the node's disk would not take (not those that
	// OutputLimit dropped).
	OutputLost int64
}

// Usage is what a sandbox has used. Memory is what it uses now; after its end, the most that one of
// its processes had.
type Usage struct {
	CPU    time.Duration
	Memory muster.Bytes
	// Pids are the processes and threads now; 0 if not to be had. PidsMax is how many it may have;
	// 0: no limit, or not known.
	Pids, PidsMax int
	// Disk is what its writable layer holds, DiskMax what that may; 0 if it has none, or not to be
	// had.
	Disk, DiskMax muster.Bytes
	// OOMKills is how many of its processes the kernel has killed for want of memory.
	OOMKills int64
}
