package main

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// strangle does to process 1 what a root inside may do to a process of the same user without looking into it, as
// far as it is let: it shall be the first that the kernel ends, get no memory and no descriptors, and have no time.
func strangle() {
	if err := os.WriteFile("/proc/1/oom_score_adj", []byte("1000"), 0); err != nil {
		fmt.Println("oom:", err)
	}
	for name, l := range map[string]struct {
		which int
		to    uint64
	}{"cpu": {unix.RLIMIT_CPU, 1}, "memory": {unix.RLIMIT_AS, 1 << 20}, "data": {unix.RLIMIT_DATA, 1 << 20}, "files": {unix.RLIMIT_NOFILE, 0}, "size": {unix.RLIMIT_FSIZE, 0}} {
		if err := unix.Prlimit(1, l.which, &unix.Rlimit{Cur: l.to, Max: l.to}, nil); err != nil {
			fmt.Println(name+":", err)
		}
	}
	if err := unix.Setpriority(unix.PRIO_PROCESS, 1, 19); err != nil {
		fmt.Println("nice:", err)
	}
	fmt.Println("strangled")
}
