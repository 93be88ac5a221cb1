package boot

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ID is the machine's boot id. It changes with each boot. It is empty where the kernel does not
// say.
func ID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace(b))
}

// Uptime is the time since the machine's boot, sleep included. It is not ok where the kernel does
// not say.
func Uptime() (up time.Duration, ok bool) {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) != nil {
		return 0, false
	}
	return time.Duration(ts.Nano()), true
}

// Suspended is for how long the machine was suspended since its boot, to within a few milliseconds:
// it reads two clocks one after the other. It is 0 where the kernel does not say.
func Suspended() time.Duration {
	var sinceBoot, awake unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &awake) != nil || unix.ClockGettime(unix.CLOCK_BOOTTIME, &sinceBoot) != nil {
		return 0
	}
	return time.Duration(sinceBoot.Nano() - awake.Nano())
}

// ProcessStart is when a process started, in clock ticks since the boot. Together with its pid and
// the boot's ID it names the process for ever. It is not ok if the process does not run; a zombie
// does not run.
func ProcessStart(pid int) (ticks uint64, ok bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, false
	}
	// The name in parentheses may itself contain parentheses and spaces: the last parenthesis ends
	// it.
	end := bytes.LastIndexByte(b, ')')
	if end < 0 {
		return 0, false
	}
	fields := strings.Fields(string(b[end+1:]))
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return 0, false
	}
	ticks, err = strconv.ParseUint(fields[19], 10, 64)
	return ticks, err == nil
}
