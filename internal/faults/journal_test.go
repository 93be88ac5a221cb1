package faults

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// memberJournal is a file to which members append when they start and end, so that
// running twice, at once or again, can be told.
type memberJournal struct {
	t    *testing.T
	path string
}

func (h *host) journal() *memberJournal { return &memberJournal{h.t, h.path("journal")} }

// script is a shell script that notes its beginning and its end around what it does.
func (j *memberJournal) script(body string) string {
	return fmt.Sprintf("echo start $MUSTER_INDEX $MUSTER_ATTEMPT >> %[1]s\n%[2]s\necho end $MUSTER_INDEX $MUSTER_ATTEMPT >> %[1]s\n", j.path, body)
}

func (j *memberJournal) lines() []string {
	b, err := os.ReadFile(j.path)
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
}

// once fails the test unless each of count members began once and ended once.
func (j *memberJournal) once(count int) {
	j.t.Helper()
	runs, ends := make([]int, count), make([]int, count)
	running := make([]bool, count)
	for _, line := range j.lines() {
		var what string
		var index, attempt int
		if _, err := fmt.Sscan(line, &what, &index, &attempt); err != nil || index < 0 || index >= count {
			j.t.Fatalf("journal: %q: %v", line, err)
		}
		switch {
		case what == "start" && running[index]:
			j.t.Errorf("member %d runs twice at once (attempt %d)", index, attempt)
		case what == "start" && ends[index] > 0:
			j.t.Errorf("member %d runs again (attempt %d) after it had succeeded", index, attempt)
		case what == "end" && !running[index]:
			j.t.Errorf("member %d ends (attempt %d) without running", index, attempt)
		}
		if running[index] = what == "start"; running[index] {
			runs[index]++
		} else {
			ends[index]++
		}
	}
	for i := range count {
		if runs[i] != 1 || ends[i] != 1 {
			j.t.Errorf("member %d began %d times and ended %d times", i, runs[i], ends[i])
		}
	}
}
