package sandbox

import (
	"runtime"
	"sync"
)

// The processes in a sandbox can use up its limit of processes and threads. The Go runtime aborts when it needs a thread
// and cannot create one. So init creates all threads that it will ever need before the command starts (startThreads), and
// the runtime never needs more:
//
//   - A system call that may take long, or that wakes another process, needs a slot of a gate. There are few slots.
//   - System calls on sockets, pipes and terminals never block (endpoint.go). They are raw: the runtime does not see them, and
//     starts no thread to replace the one that makes them. Waiting is done by the runtime's poller.
//   - No goroutine waits for a client or a program while it holds a slot or is locked to a thread.
//
// There is a gate for each kind of thing that can hang: a file system that does not answer blocks file operations, but no executions.
const (
	// fileSlots are for operations on files: any file system that the sandbox sees.
	fileSlots = 3
	// launchSlots are for starting programs.
	launchSlots = 2
	// diskSlots are for the output that is kept.
	diskSlots = 1
	// briefSlots are for calls that take microseconds, such as closing a socket.
	briefSlots = 1
	// startedThreads are those of the slots, those that run Go code, the one that waits in the poller, and the loop's. The thread
	// that the process began with, and one more that the runtime starts early, are to spare.
	startedThreads = fileSlots + launchSlots + diskSlots + briefSlots + processors + 1
)

// gate bounds how many goroutines are in blocking system calls at once. A nil gate is open to all.
type gate chan struct{}

func newGate(slots int) gate { return make(gate, slots) }

func (g gate) enter() {
	if g != nil {
		g <- struct{}{}
	}
}

func (g gate) leave() {
	if g != nil {
		<-g
	}
}

// gates of one sandbox.
type gates struct{ files, launches, disk, brief gate }

func newGates() gates {
	return gates{files: newGate(fileSlots), launches: newGate(launchSlots), disk: newGate(diskSlots), brief: newGate(briefSlots)}
}

// startThreads starts threads, which the runtime keeps idle from then on: it ends none that a goroutine has unlocked. The
// runtime's template thread, which it needs for goroutines that are locked to theirs, is started as well.
//
// The caller stays on its thread: the loop shall be on the first one, see lookOften.
func startThreads(n int) {
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
