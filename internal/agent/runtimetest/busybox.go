package runtimetest

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Busybox makes the layers of a small image below dir: the node's own statically linked busybox, and the files
// that every image has. Owners are shifted. The error says why it is not to be had here.
func Busybox(dir string, shift int) (layers []string, err error) {
	program, err := exec.LookPath("busybox")
	if err != nil {
		return nil, errors.New("no busybox on this machine (Debian: busybox-static)")
	}
	f, err := elf.Open(program)
	if err != nil {
		return nil, err
	}
	libraries, err := f.ImportedLibraries()
	_ = f.Close()
	if err != nil || len(libraries) > 0 {
		return nil, fmt.Errorf("%s is not statically linked (Debian: busybox-static)", program)
	}
	b, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	out, err := exec.Command(program, "--list").Output()
	if err != nil {
		return nil, err
	}
	const base, words = "1", "2"
	for _, d := range []string{base + "/bin", base + "/root", base + "/tmp", words + "/etc", words + "/srv/data"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	if err := os.WriteFile(filepath.Join(dir, base, "bin/busybox"), b, 0o755); err != nil {
		return nil, err
	}
	for name := range strings.FieldsSeq(string(out)) {
		if name != "busybox" {
			if err := os.Symlink("busybox", filepath.Join(dir, base, "bin", name)); err != nil {
				return nil, err
			}
		}
	}
	files := map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/bin/sh\nguest:x:1000:1000:guest:/tmp:/bin/sh\n",
		"etc/group":  "root:x:0:\nguest:x:1000:\nwheel:x:10:guest\n",
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, words, name), []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	if err := os.Chmod(filepath.Join(dir, base, "tmp"), os.ModeSticky|0o777); err != nil {
		return nil, err
	}
	if shift > 0 {
		if err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
			if err == nil && path != dir {
				err = os.Lchown(path, shift, shift)
			}
			return err
		}); err != nil {
			return nil, err
		}
	}
	return []string{words, base}, nil
}
