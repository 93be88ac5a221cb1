package oci

import (
	"strings"
	"testing"
)

// TestErrorsOfAProgramComeBeforeItsWarnings: the reason must not be cut off behind what the program says of its cleanup.
func TestErrorsOfAProgramComeBeforeItsWarnings(t *testing.T) {
	warning := `time="2026-11-25T18:00:00Z" level=warning msg="Failed to remove cgroup (will retry)" error="rmdir /sys/fs/cgroup/x: device or resource busy"`
	cause := `time="2026-11-25T18:00:00Z" level=error msg="runc run failed: unable to start container process: exec: \"/x\": not found"`
	for log, want := range map[string]string{
		strings.Repeat(warning+"\n", 100) + cause + "\n":  cause + "\n" + strings.Repeat(warning+"\n", 100),
		warning + "\n" + cause:                            cause + "\n" + warning + "\n",
		"2026-11-25T18:00:00Z: open `/x`: No such file\n": "2026-11-25T18:00:00Z: open `/x`: No such file\n",
		"": "",
	} {
		if got := causeFirst(log); got != want {
			t.Errorf("%.300q", got)
		}
	}
}
