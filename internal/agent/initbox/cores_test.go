package initbox

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A child that is started on one core may use that one alone, and the thread any as before.
func TestOnCores(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, after unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		t.Fatal(err)
	}
	allowed := func() string {
		out, err := exec.Command("grep", "Cpus_allowed_list", "/proc/self/status").Output()
		if err != nil {
			t.Fatal(err)
		}
		return strings.Fields(string(out))[1]
	}
	anywhere := OnCores([]int{0})
	if got := allowed(); strings.ContainsAny(got, ",-") {
		t.Errorf("on one core a child may use %s", got)
	}
	anywhere()
	if err := unix.SchedGetaffinity(0, &after); err != nil || after != before {
		t.Errorf("the thread may use %v, before %v: %v", after, before, err)
	}
	anywhere = OnCores([]int{os.Getpagesize()}) // beyond the last: one all the same
	if got := allowed(); strings.ContainsAny(got, ",-") {
		t.Errorf("on a core beyond the last a child may use %s", got)
	}
	anywhere()
}
