package sandbox

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"

	initwire "github.com/musterhq/muster/internal/wire/init"
)

// OpenOwners makes a user namespace for each map of ids and sends its descriptor to
// initwire.FDOwners. Creating a namespace takes a fork that copies the tables of the caller's
// memory: from here that is 1 MiB, from an agent 100. It returns the exit code; before it fails, it
// sends the cause as text.
func OpenOwners(maps []string) int {
	for _, text := range maps {
		if err := openOwners(text); err != nil {
			_ = syscall.Sendmsg(initwire.FDOwners, []byte(err.Error()), nil, nil, 0)
			return 1
		}
	}
	return 0
}

func openOwners(text string) error {
	ranges, err := initwire.ParseOwners(text)
	if err != nil {
		return err
	}
	m := make([]syscall.SysProcIDMap, len(ranges))
	for i, r := range ranges {
		m[i] = syscall.SysProcIDMap{ContainerID: r.Inside, HostID: r.Outside, Size: r.Size}
	}
	// The child stops at its first instruction for the thread that traces it: it is only there to
	// have a namespace.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	pid, err := syscall.ForkExec("/proc/self/exe", []string{"muster-init"}, &syscall.ProcAttr{Sys: &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWUSER, UidMappings: m, GidMappings: m, Ptrace: true, Pdeathsig: syscall.SIGKILL,
	}})
	if err != nil {
		return fmt.Errorf("user namespace: %w", err)
	}
	defer func() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		// The first status may be that of the stop.
		for {
			var status syscall.WaitStatus
			if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil && err != syscall.EINTR || status.Signaled() || status.Exited() {
				return
			}
		}
	}()
	f, err := os.Open("/proc/" + strconv.Itoa(pid) + "/ns/user")
	if err != nil {
		return fmt.Errorf("user namespace: %w", err)
	}
	defer func() { _ = f.Close() }()
	return os.NewSyscallError("sendmsg", syscall.Sendmsg(initwire.FDOwners, []byte{0}, syscall.UnixRights(int(f.Fd())), nil, 0))
}
