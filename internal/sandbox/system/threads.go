package system

import (
	"runtime"
	"sync"
)

// The processes in a sandbox can use up its limit of processes and threads. The Go runtime aborts
// when it needs a thread and cannot create one. So init creates all threads that it will ever need
// before the command starts (StartThreads), and the runtime never needs more:
//
//   - A system call that may take long, or that wakes another process, needs a slot of a gate. There are few slots.
//   - System calls on sockets, pipes and terminals never block (endpoint.go). They are raw: the runtime does not see them, and
//     starts no thread to replace the one that makes them. Waiting is done by the runtime's poller.
//   - No goroutine waits for a client or a program while it holds a slot or is locked to a thread.
//
// There is a gate for each kind of thing that can hang: a file system that does not answer blocks
// file operations, but no executions.
const (
	// FileSlots are for operations on files: any file system that the sandbox sees.
	FileSlots = 3
	// LaunchSlots are for starting programs.
	LaunchSlots = 2
	// diskSlots are for the output that is kept.
	diskSlots = 1
	// briefSlots are for calls that take microseconds, such as closing a socket.
	briefSlots = 1
	// Processors is how many processors init uses once it serves operations. The loop waits in a
	// system call with one of them. With only one, no other goroutine would run before the
	// runtime's monitor notices.
	Processors = 2
	// StartedThreads are those of the slots, those that run Go code, the one that waits in the
	// poller, and the loop's. The thread that the process began with, and one more that the runtime
	// starts early, are to spare.
	StartedThreads = FileSlots + LaunchSlots + diskSlots + briefSlots + Processors + 1
)

// Gate bounds how many goroutines are in blocking system calls at once. A nil gate is open to all.
type Gate chan struct{}

func newGate(slots int) Gate { return make(Gate, slots) }

// Enter waits for a slot.
func (g Gate) Enter() {
	if g != nil {
		g <- struct{}{}
	}
}

// Leave gives the slot back.
func (g Gate) Leave() {
	if g != nil {
		<-g
	}
}

// Gates of one sandbox, one for each kind of system call that can hang.
type Gates struct{ Files, Launches, Disk, Brief Gate }

// NewGates makes the gates of a sandbox, with the slots that StartedThreads counts.
func NewGates() Gates {
	return Gates{Files: newGate(FileSlots), Launches: newGate(LaunchSlots), Disk: newGate(diskSlots), Brief: newGate(briefSlots)}
}

// StartThreads starts n threads, which the runtime keeps idle from then on: it ends no thread that
// a goroutine has unlocked. The runtime's template thread, which it needs for goroutines that are
// locked to theirs, is started as well.
//
// The caller stays on its thread, because SIGCHLD goes to the first one, where the loop of package
// sandbox must be.
func StartThreads(n int) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	release := make(chan struct{})
	var locked, over sync.WaitGroup
	locked.Add(n)
	for range n {
		over.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			locked.Done()
			<-release
		})
	}
	locked.Wait()
	close(release)
	over.Wait()
}
