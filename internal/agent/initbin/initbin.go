// Package initbin carries the muster-init program inside muster-node, so that
// one file is all that a node needs.
//
// The build puts the program at bin/muster-init in this folder before it
// compiles muster-node; in a fresh clone only the folder is there and nothing is carried. It must
// never start anything. cmd/muster-node uses it.
package initbin

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

//go:embed all:bin
var files embed.FS

// name of the program, here and beside muster-node.
const name = "muster-init"

// keepHex is how much of the digest goes into a name.
const keepHex = 16

// Place makes sure that the program is in dir, under a name that says which
// build it is, and returns its path; dir is made if only it is missing. Sandboxes of earlier builds keep theirs. Without a
// carried program the one beside this executable is used where it is.
func Place(dir string) (string, error) { return place(files, dir) }

func place(carried fs.FS, dir string) (string, error) {
	program, err := fs.ReadFile(carried, "bin/"+name)
	if errors.Is(err, fs.ErrNotExist) {
		return beside()
	}
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(program)
	path := filepath.Join(dir, name+"-"+hex.EncodeToString(sum[:])[:keepHex])
	// A power cut may have left a file of the right length without its bytes, so length is not enough.
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, program) {
		return path, os.Chmod(path, 0o755)
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	f, err := os.CreateTemp(dir, name+"-tmp-")
	if err != nil {
		return "", err
	}
	_, err = f.Write(program)
	if err == nil {
		err = f.Chmod(0o755)
	}
	// Closed before it gets its name: a program that is open for writing cannot be started.
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return "", fmt.Errorf("place %s: %w", name, err)
	}
	return path, nil
}

// beside finds the program next to the running executable.
func beside() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	path := filepath.Join(filepath.Dir(self), name)
	info, err := os.Stat(path)
	if err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
		return path, nil
	}
	return "", fmt.Errorf("this muster-node was built without %s and there is none at %s: build with make, or give its path with --init", name, path)
}
