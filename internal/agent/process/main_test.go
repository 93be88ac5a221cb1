package process

import (
	"fmt"
	"os"
	"testing"

	"github.com/musterhq/muster/internal/programtest"
)

// initPath is muster-init, built once; a helper that runs as another user gets it handed over.
var initPath = os.Getenv("MUSTER_TEST_INIT")

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if len(os.Args) > 1 && (os.Args[1] == agentArgument || os.Args[1] == manyArgument) {
		return runAgent(os.Args[1], os.Args[2:])
	}
	if initPath == "" {
		dir, err := os.MkdirTemp("", "muster-init-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() { _ = os.RemoveAll(dir) }()
		if err := os.Chmod(dir, 0o755); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		if initPath, err = programtest.Init(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return m.Run()
}
