package imagetest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// debianSuite is which Debian; debianWait bounds making it.
const (
	debianSuite = "bookworm"
	debianWait  = 10 * time.Minute
)

// Debian is Debian with Python 3 (python3-minimal, also as `python3`), some 150 MB. It is made once and kept in the
// user's cache directory, or in MUSTER_TEST_CACHE. The test is skipped where it can neither be found nor made.
func Debian(t testing.TB) v1.Image {
	t.Helper()
	file := debianArchive(t)
	layer, err := tarball.LayerFromFile(file, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		t.Fatalf("debian: %v", err)
	}
	return New(t, v1.Config{Env: []string{Path, "LANG=C.UTF-8"}, Cmd: []string{"python3"}}, layer)
}

func debianArchive(t testing.TB) string {
	t.Helper()
	cache := os.Getenv("MUSTER_TEST_CACHE")
	if cache == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			user = os.TempDir()
		}
		cache = filepath.Join(user, "muster-test")
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		t.Skipf("no place to keep a Debian image: %v", err)
	}
	file := filepath.Join(cache, "debian-"+debianSuite+"-"+architecture+".tar.gz")
	if _, err := os.Stat(file); err == nil {
		return file
	}
	// Packages are tested side by side, each in a process of its own: one makes it, the others wait.
	lock, err := os.OpenFile(file+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Skipf("no place to keep a Debian image: %v", err)
	}
	defer func() { _ = lock.Close() }()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatalf("debian: %v", err)
	}
	if _, err := os.Stat(file); err == nil {
		return file
	}
	if why := makeDebian(file); why != nil {
		t.Skipf("no Debian image can be made here: %v", why)
	}
	return file
}

func makeDebian(file string) error {
	program, err := exec.LookPath("mmdebstrap")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), debianWait)
	defer cancel()
	part := strings.TrimSuffix(file, ".tar.gz") + ".part.tar.gz" // it compresses by name
	defer func() { _ = os.Remove(part) }()
	cmd := exec.CommandContext(ctx, program, "--quiet", "--format=tar", "--variant=essential", "--include=python3-minimal",
		// Documentation is half of it.
		"--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/locale/*",
		"--customize-hook=rm -rf \"$1\"/var/lib/apt/lists/* \"$1\"/var/cache/apt/*",
		debianSuite, part)
	cmd.Env = append(os.Environ(), "SOURCE_DATE_EPOCH="+fmt.Sprint(born.Unix()))
	cmd.WaitDelay = 10 * time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		text := strings.TrimSpace(string(out))
		if at := strings.LastIndexByte(text, '\n'); at >= 0 {
			text = text[at+1:]
		}
		return fmt.Errorf("mmdebstrap: %w: %s", err, text)
	}
	return os.Rename(part, file)
}
