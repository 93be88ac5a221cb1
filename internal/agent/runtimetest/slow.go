package runtimetest

import (
	"os"
	"strconv"
)

// Slow is how many times slower than others this machine is taken to be, by the environment variable MUSTER_TEST_SLOW; 1
// without it. A machine whose processor is emulated says so (e2e/vm): what is waited for may take that much longer there, and
// what a case does dozens of times it does less often. What must hold stays the same.
func Slow() int {
	n, err := strconv.Atoi(os.Getenv("MUSTER_TEST_SLOW"))
	if err != nil || n < 1 {
		return 1
	}
	return min(n, 20)
}
