package endtoend

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

var binFlag = flag.String("endtoend.bin", "", "directory with muster, muster-node and muster-init to measure, instead of building them")

// programs are built when the first test or benchmark asks for them.
var programs = struct {
	once               sync.Once
	muster, node, init string
	dir                string // where they were built; deleted at the end
	err                error
}{}

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	if programs.dir != "" {
		if err := os.RemoveAll(programs.dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	os.Exit(code)
}

// needPrograms builds the programs as the Makefile does.
func needPrograms(tb testing.TB) {
	tb.Helper()
	programs.once.Do(func() { programs.err = build() })
	if programs.err != nil {
		tb.Fatal(programs.err)
	}
}

func build() error {
	const module = "github.com/musterhq/muster"
	dir := *binFlag
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "meb-"); err != nil {
			return err
		}
		programs.dir = dir
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	programs.muster, programs.node, programs.init = at("muster"), at("muster-node"), at("muster-init")
	if *binFlag != "" {
		return nil
	}
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		return err
	}
	// The muster-init that muster-node carries is the one just built, whatever lies in the tree.
	overlay, err := json.Marshal(map[string]map[string]string{
		"Replace": {filepath.Join(root, "internal/agent/initbin/bin/muster-init"): programs.init},
	})
	if err != nil {
		return err
	}
	if err := os.WriteFile(at("overlay.json"), overlay, 0o600); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"-o", programs.init, module + "/cmd/muster-init"},
		{"-overlay", at("overlay.json"), "-o", programs.node, module + "/cmd/muster-node"},
		{"-o", programs.muster, module + "/cmd/muster"},
	} {
		cmd := exec.Command("go", append([]string{"build", "-trimpath", "-ldflags", "-s -w"}, args...)...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w\n%s", cmd.Args, err, out)
		}
	}
	return nil
}
