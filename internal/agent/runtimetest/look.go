package runtimetest

import (
	"errors"
	"fmt"
	"os"

	"github.com/musterhq/muster/internal/agent/initbox"
)

// Condition is what the directory of a sandbox says of it.
type Condition string

// Conditions.
const (
	// None: no command was ever started here.
	None Condition = "none"
	// Running: at least one process of it lives.
	Running Condition = "running"
	// Ended: it came to an end that is written down.
	Ended Condition = "ended"
	// Died: it was started, nothing of it lives, and no end is written down.
	Died Condition = "died"
)

// Look returns the condition of the sandbox of dir. It needs no agent.
func Look(dir string) (Condition, error) {
	// Living first: what ends between the two looks has written its end by the second.
	living, err := initbox.Members(dir)
	if err != nil {
		return "", err
	}
	record, err := initbox.Read(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return None, nil
	case err != nil:
		return "", fmt.Errorf("look at the sandbox: %w", err)
	case record.Result != nil || record.Failed != nil:
		return Ended, nil
	case len(living) > 0:
		return Running, nil
	case record.Command == nil:
		return None, nil
	}
	return Died, nil
}
