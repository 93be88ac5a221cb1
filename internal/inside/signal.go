package inside

import (
	"strconv"
	"strings"
	"syscall"
)

// signals by name, as Linux numbers them on every machine that nodes are: the server may run on
// another system.
var signals = [...]string{
	1: "HUP", 2: "INT", 3: "QUIT", 4: "ILL", 5: "TRAP", 6: "ABRT", 7: "BUS", 8: "FPE", 9: "KILL", 10: "USR1", 11: "SEGV", 12: "USR2",
	13: "PIPE", 14: "ALRM", 15: "TERM", 16: "STKFLT", 17: "CHLD", 18: "CONT", 19: "STOP", 20: "TSTP", 21: "TTIN", 22: "TTOU", 23: "URG",
	24: "XCPU", 25: "XFSZ", 26: "VTALRM", 27: "PROF", 28: "WINCH", 29: "IO", 30: "PWR", 31: "SYS",
}

// maxSignal is the last real-time signal.
const maxSignal = 64

// ParseSignal reads a name, with or without SIG, or a number.
func ParseSignal(s string) (syscall.Signal, bool) {
	if n, err := strconv.Atoi(s); err == nil {
		return syscall.Signal(n), n >= 1 && n <= maxSignal
	}
	name := strings.TrimPrefix(strings.ToUpper(s), "SIG")
	for n, known := range signals {
		if known != "" && known == name {
			return syscall.Signal(n), true
		}
	}
	return 0, false
}

// signalName is as allocations have it, SIGKILL; "" for 0, and a number where there is no name.
func signalName(n int) string {
	switch {
	case n <= 0 || n > maxSignal:
		return ""
	case n < len(signals):
		return "SIG" + signals[n]
	}
	return strconv.Itoa(n)
}
