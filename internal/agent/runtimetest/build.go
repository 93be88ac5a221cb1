package runtimetest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// BuildInit builds muster-init as it is shipped, into dir, and says where it is. Meant for TestMain.
func BuildInit(dir string) (path string, err error) {
	path = filepath.Join(dir, "muster-init")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, "github.com/musterhq/muster/cmd/muster-init")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build muster-init: %w\n%s", err, out)
	}
	return path, os.Chmod(path, 0o755)
}
