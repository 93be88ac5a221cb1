// Package programtest builds Muster's own programs for tests that start them.
//
// Many packages test the same programs, each in a process of its own. All build them here, compiled with the flags
// of the Makefile: each package is compiled once for all of them, and the Go tool links each program once, because
// it keeps what `go run` linked in its build cache. It must never be used outside of tests.
package programtest

import (
	"encoding/json"
	"fmt"
	"maps"
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

// Stepped builds muster and muster-node into dir with a wall clock that tests can step: they add to it as many seconds as the
// file clock-offset in their user's home says at the moment, and nothing to the monotonic clock. (muster-init has no home, and
// keeps the machine's clock.)
func Stepped(dir string) (muster, node string, err error) {
	work, err := os.MkdirTemp("", "muster-stepped-build-")
	if err != nil {
		return "", "", err
	}
	defer func() { _ = os.RemoveAll(work) }()
	replace, err := steppedClock(work)
	if err != nil {
		return "", "", err
	}
	flags, err := overlay(work, replace)
	if err != nil {
		return "", "", err
	}
	if muster, err = build(dir, "cmd/muster", flags, nil); err != nil {
		return "", "", err
	}
	node, err = nodeWith(dir, replace)
	return muster, node, err
}

// steppedClock writes package time with a clock that can be stepped, and returns which files replace which.
func steppedClock(work string) (map[string]string, error) {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	pkg := filepath.Join(strings.TrimSpace(string(root)), "src", "time")
	text, err := os.ReadFile(filepath.Join(pkg, "time.go"))
	if err != nil {
		return nil, err
	}
	const reads = "\tsec, nsec, mono := runtimeNow()\n\tif mono == 0 {"
	if strings.Count(string(text), reads) != 1 {
		return nil, fmt.Errorf("%s reads the clock otherwise than was thought; steppedClock has to follow it", filepath.Join(pkg, "time.go"))
	}
	changed := filepath.Join(work, "time.go")
	if err := os.WriteFile(changed, []byte(strings.Replace(string(text), reads, "\tsec, nsec, mono := runtimeNow()\n\tsec += clockOffset.Load()\n\tif mono == 0 {", 1)), 0o600); err != nil {
		return nil, err
	}
	added := filepath.Join(work, "offset.go")
	if err := os.WriteFile(added, []byte(clockOffset), 0o600); err != nil {
		return nil, err
	}
	return map[string]string{filepath.Join(pkg, "time.go"): changed, filepath.Join(pkg, "offset_test_build.go"): added}, nil
}

// clockOffset is a file of package time. It reads the offset before main, and again and again.
const clockOffset = `package time

import (
	"sync/atomic"
	"syscall"
)

var clockOffset atomic.Int64

func init() {
	home, ok := syscall.Getenv("HOME")
	if !ok {
		return
	}
	file := home + "/clock-offset"
	readClockOffset(file)
	go func() {
		for {
			Sleep(10 * Millisecond)
			readClockOffset(file)
		}
	}()
}

func readClockOffset(file string) {
	fd, err := syscall.Open(file, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	var text [32]byte
	n, err := syscall.Read(fd, text[:])
	syscall.Close(fd)
	if err != nil || n <= 0 || text[n-1] != '\n' {
		return
	}
	sign, seconds := int64(1), int64(0)
	for _, c := range text[:n-1] {
		if c == '-' {
			sign = -1
			continue
		}
		seconds = 10*seconds + int64(c-'0')
	}
	clockOffset.Store(sign * seconds)
}
`

// Init builds muster-init into dir, which must exist, and returns its path.
func Init(dir string) (string, error) { return build(dir, "cmd/muster-init", nil, nil) }

// Node builds muster-node into dir, which must exist, and returns its path. It carries the muster-init of these
// sources, even if the tree has none or an older one. Flags are for the linker.
func Node(dir string, flags ...string) (string, error) { return nodeWith(dir, nil, flags...) }

// nodeWith is Node with more source files replaced.
func nodeWith(dir string, replace map[string]string, flags ...string) (string, error) {
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
	files := map[string]string{carried: program}
	maps.Copy(files, replace)
	with, err := overlay(work, files)
	if err != nil {
		return "", err
	}
	return build(dir, "cmd/muster-node", with, flags)
}

// overlay is the flags of a build that has some files replaced.
func overlay(work string, replace map[string]string) ([]string, error) {
	text, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	if err != nil {
		return nil, err
	}
	file := filepath.Join(work, "overlay.json")
	return []string{"-overlay", file}, os.WriteFile(file, text, 0o600)
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
