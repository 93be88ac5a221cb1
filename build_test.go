package muster_test

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// Two clones in different places, built by people with different settings, are the same to the last byte. One program stands for all:
// they are built by the same line of the Makefile.
func TestBuildsAreReproducible(t *testing.T) {
	for _, program := range []string{"git", "make"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(here, ".git")); err != nil {
		t.Skip("this is no clone")
	}
	cache, err := exec.Command("go", "env", "GOCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	build := func(place string, settings ...string) [sha256.Size]byte {
		dir := filepath.Join(t.TempDir(), place)
		for _, args := range [][]string{{"git", "clone", "-q", "--no-hardlinks", here, dir}, {"make", "-s", "-C", dir, "bin/muster-init"}} {
			cmd := exec.Command(args[0], args[1:]...)
			cmd.Env = append(os.Environ(), append(settings, "GOCACHE="+strings.TrimSpace(string(cache)))...)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %v\n%s", args, err, out)
			}
		}
		b, err := os.ReadFile(filepath.Join(dir, "bin/muster-init"))
		if err != nil {
			t.Fatal(err)
		}
		return sha256.Sum256(b)
	}
	one := build("here", "GOFLAGS=-buildvcs=true", "CGO_ENABLED=1")
	other := build("a/much/longer/place", "GOFLAGS=-tags=something -ldflags=-X=main.x=y", "GOAMD64=v3", "USER=somebody")
	if one != other {
		t.Errorf("%x\n%x", one, other)
	}
}

// Servers of either architecture have agents for both: these are built as packages have them, whatever
// machine this is, and carry the init of their own architecture.
func TestProgramsForBothArchitectures(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip(err)
	}
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		dir := filepath.Join(t.TempDir(), arch)
		if out, err := exec.Command("packaging/programs", "v-test", arch, dir, "muster-node").CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", arch, err, out)
		}
		for _, name := range []string{"muster-init", "muster-node"} {
			f, err := elf.Open(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			if f.Machine != machine {
				t.Errorf("%s for %s is for %s", name, arch, f.Machine)
			}
			_ = f.Close()
		}
		inner, err := os.ReadFile(filepath.Join(dir, "muster-init"))
		if err != nil {
			t.Fatal(err)
		}
		if outer, err := os.ReadFile(filepath.Join(dir, "muster-node")); err != nil || !bytes.Contains(outer, inner) {
			t.Errorf("muster-node for %s does not have the muster-init for %[1]s in it: %v", arch, err)
		}
	}
	// What is built for one architecture alone is looked at here and nowhere else.
	other := "arm64"
	if runtime.GOARCH == other {
		other = "amd64"
	}
	vet := exec.Command("go", "vet", "-trimpath", "./cmd/muster-node", "./cmd/muster-init", "./internal/agent/...", "./internal/sandbox/...")
	vet.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+other)
	if out, err := vet.CombinedOutput(); err != nil {
		t.Errorf("for %s: %v\n%s", other, err, out)
	}
}

// What `make demo` builds links none of the SDKs of clouds, and at most half of the packages of others that the whole program has.
func TestLeanProgramLinksNoDrivers(t *testing.T) {
	others := func(args ...string) (n int) {
		out, err := exec.Command("go", append(append([]string{"list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}"}, args...), "./cmd/muster")...).Output()
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(out)) {
			for _, sdk := range []string{"github.com/aws/", "github.com/Azure/", "cloud.google.com/"} {
				if len(args) > 0 && strings.HasPrefix(line, sdk) {
					t.Errorf("the lean program links %s", line)
				}
			}
			n++
		}
		return n
	}
	if all, lean := others(), others("-tags", "lean"); 2*lean > all {
		t.Errorf("it links %d packages beside the standard library, the whole program %d", lean, all)
	}
}
