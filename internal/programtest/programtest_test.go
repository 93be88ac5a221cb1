package programtest

import (
	"os/exec"
	"testing"
)

// Programs lie in the directory that was asked for, and call themselves by the version that was asked for.
func TestPrograms(t *testing.T) {
	for want, build := range map[string]func(dir string) (string, error){
		"devel\n":  func(dir string) (string, error) { return Node(dir) },
		"v-next\n": func(dir string) (string, error) { return Node(dir, Release("v-next")) },
	} {
		program, err := build(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(program, "version").CombinedOutput(); err != nil || string(out) != want {
			t.Errorf("%s: %q %v, want %q", program, out, err, want)
		}
	}
}
