package initbox

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// OnCores has children that this thread starts before the returned function is called run on these cores alone, and all
// that they start. Cores are counted among those that the thread may use; past the last it begins again, on nodes that
// claim more than there are. A process that chooses its cores itself can leave them: cgroups keep it from taking more
// than its share, not from taking it elsewhere. None: nothing is changed.
func OnCores(cores []int) (anywhere func()) {
	if len(cores) == 0 {
		return func() {}
	}
	runtime.LockOSThread()
	var before unix.CPUSet
	err := unix.SchedGetaffinity(0, &before)
	if err == nil {
		var usable []int
		for i := 0; len(usable) < before.Count(); i++ {
			if before.IsSet(i) {
				usable = append(usable, i)
			}
		}
		var on unix.CPUSet
		for _, c := range cores {
			on.Set(usable[c%len(usable)])
		}
		_ = unix.SchedSetaffinity(0, &on)
	}
	return func() {
		if err == nil {
			_ = unix.SchedSetaffinity(0, &before)
		}
		runtime.UnlockOSThread()
	}
}
