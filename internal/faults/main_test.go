package faults

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var (
	binFlag  = flag.String("faults.bin", "", "directory with muster, muster-node and muster-init to test, instead of building them")
	seedFlag = flag.Uint64("faults.seed", 0, "seed of the moments at which things are killed; 0 draws one")
)

// programs under test, set once by TestMain. Next is muster-node of another version; version is what node calls
// itself: without a release it is the revision that it was built from, where the Go tool finds one.
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

// build makes the programs as the Makefile does. The muster-init that muster-node
// carries is the one just built, whatever lies in the tree.
func build(dir string) error {
	const module = "github.com/musterhq/muster"
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		return err
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	if *binFlag != "" {
		given, err := filepath.Abs(*binFlag)
		if err != nil {
			return err
		}
		at = func(name string) string { return filepath.Join(given, name) }
	}
	programs.muster, programs.node, programs.next = at("muster"), at("muster-node"), filepath.Join(dir, "muster-node-next")

	overlay, err := json.Marshal(map[string]map[string]string{
		"Replace": {filepath.Join(root, "internal/agent/initbin/bin/muster-init"): at("muster-init")},
	})
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600); err != nil {
		return err
	}
	carry := []string{"-overlay", filepath.Join(dir, "overlay.json")}
	small := []string{"-ldflags", "-s -w"}
	all := [][]string{
		append(small, "-o", at("muster-init"), module+"/cmd/muster-init"),
		append(append(small, carry...), "-o", programs.node, module+"/cmd/muster-node"),
		append(small, "-o", programs.muster, module+"/cmd/muster"),
	}
	if *binFlag != "" {
		all = nil
	}
	all = append(all, append(carry, "-ldflags", "-s -w -X "+module+"/internal/version.release="+nextVersion, "-o", programs.next, module+"/cmd/muster-node"))
	for _, args := range all {
		cmd := exec.Command("go", append([]string{"build", "-trimpath"}, args...)...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w\n%s", cmd.Args, err, out)
		}
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
