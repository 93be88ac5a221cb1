// Package programtest builds Muster's own programs for tests that start them.
//
// Many packages test the same programs, each in a process of its own. All build them here, compiled with the flags
// of the Makefile: each package is compiled once for all of them, and the Go tool links each program once, because
// it keeps what `go run` linked in its build cache. It must never be used outside of tests.
package programtest

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const module = "github.com/musterhq/muster/"

// Release is a linker flag that makes a program call itself by this version. Without it the version is "devel".
func Release(version string) string { return "-X=" + module + "internal/version.release=" + version }

// Muster builds muster into dir, which must exist, and returns its path.
func Muster(dir string) (string, error) { return build(dir, "cmd/muster", nil, nil) }

// Init builds muster-init into dir, which must exist, and returns its path.
func Init(dir string) (string, error) { return build(dir, "cmd/muster-init", nil, nil) }

// Node builds muster-node into dir, which must exist, and returns its path. It carries the muster-init of these
// sources, even if the tree has none or an older one. Flags are for the linker.
func Node(dir string, flags ...string) (string, error) {
	work, err := os.MkdirTemp("", "muster-node-build-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(work) }()
	// Linked as the Makefile does, to the last byte: with another muster-init, all that is above it would be compiled again.
	program := filepath.Join(work, "muster-init")
	if err := run("build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -buildid=", "-o", program, module+"cmd/muster-init"); err != nil {
		return "", err
	}
	list, err := exec.Command("go", "list", "-f", "{{.Dir}}", module+"internal/agent/initbin").Output()
	if err != nil {
		return "", fmt.Errorf("go list: %w", err)
	}
	carried := filepath.Join(strings.TrimSpace(string(list)), "bin", "muster-init")
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {carried: program}})
	if err != nil {
		return "", err
	}
	file := filepath.Join(work, "overlay.json")
	if err := os.WriteFile(file, overlay, 0o600); err != nil {
		return "", err
	}
	return build(dir, "cmd/muster-node", []string{"-overlay", file}, flags)
}

// Build builds another program of this module into dir, which must exist, and returns its path.
func Build(dir, program string) (string, error) { return build(dir, program, nil, nil) }

// build has `go run` link the program and copy it instead of running it. It keeps the build id: the Go tool caches
// no program without one.
func build(dir, program string, flags, linker []string) (string, error) {
	linker = append([]string{"-s", "-w"}, linker...)
	args := append([]string{"run", "-trimpath", "-buildvcs=false", "-ldflags", strings.Join(linker, " "), "-exec", "cp -t '" + dir + "'"}, flags...)
	if err := run(append(args, module+program)...); err != nil {
		return "", err
	}
	path := filepath.Join(dir, filepath.Base(program))
	return path, os.Chmod(path, 0o755)
}

func run(args ...string) error {
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w\n%s", cmd.Args, err, out)
	}
	return nil
}
