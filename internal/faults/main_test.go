package faults

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/musterhq/muster/internal/programtest"
)

var (
	binFlag   = flag.String("faults.bin", "", "directory with muster, muster-node and muster-init to test, instead of building them")
	clockFlag = flag.Bool("faults.clock", false, "build programs whose wall clock can be stepped, and run the tests that step it (make e2e-clock)")
	seedFlag  = flag.Uint64("faults.seed", 0, "seed of the moments at which things are killed; 0 draws one")
)

// programs under test, set once by TestMain. Next is muster-node of another version; version is what node calls itself.
var programs struct{ muster, node, next, version string }

// nextVersion is what the other muster-node calls itself.
const nextVersion = "v-next"

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(buildAndRun(m))
}

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "mfb-")
	if err == nil {
		defer func() { _ = os.RemoveAll(dir) }()
		err = os.Chmod(dir, 0o755)
	}
	if err == nil {
		err = build(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// build makes the programs, or takes those that are given.
func build(dir string) (err error) {
	if *binFlag != "" {
		given, err := filepath.Abs(*binFlag)
		if err != nil {
			return err
		}
		programs.muster, programs.node = filepath.Join(given, "muster"), filepath.Join(given, "muster-node")
	} else if *clockFlag {
		if programs.muster, programs.node, err = programtest.Stepped(dir); err != nil {
			return err
		}
	} else {
		if programs.muster, err = programtest.Muster(dir); err != nil {
			return err
		}
		if programs.node, err = programtest.Node(dir); err != nil {
			return err
		}
	}
	next := filepath.Join(dir, "next")
	if err := os.Mkdir(next, 0o755); err != nil {
		return err
	}
	if programs.next, err = programtest.Node(next, programtest.Release(nextVersion)); err != nil {
		return err
	}
	out, err := exec.Command(programs.node, "version").Output()
	if err != nil {
		return fmt.Errorf("%s version: %w", programs.node, err)
	}
	programs.version = strings.TrimSpace(string(out))
	return nil
}

// chance is the random stream of a test, and says how to have it again.
func chance(t *testing.T) *rand.Rand {
	t.Helper()
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d; the same again: go test ./internal/faults -run '^%s$' -faults.seed %d", seed, t.Name(), seed)
	return rand.New(rand.NewPCG(seed, 1))
}
