package initbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	initwire "github.com/musterhq/muster/internal/wire/init"
)

// Unwalled is the name of the one runtime whose init is trusted with the record.
const Unwalled = "process"

// Names in the directory of a walled sandbox.
const (
	// Out is what init sees of the directory, Box what is the runtime's.
	Out = "out"
	Box = "box"
	// outRecord is init's own record, in Out.
	outRecord = "record"
)

func walled(s *initwire.Sandbox) bool { return s.Runtime != Unwalled }

// outputDir is where the output of a sandbox lies.
func outputDir(dir string, s *initwire.Sandbox) string {
	if walled(s) {
		return filepath.Join(dir, Out)
	}
	return dir
}

// Read reads all that is recorded of the sandbox of dir. The error wraps
// os.ErrNotExist if none was begun there. Of a walled sandbox only the agent's
// own record is believed for what the agent writes.
func Read(dir string) (*initwire.Record, error) {
	record, err := initwire.ReadRecord(filepath.Join(dir, initwire.SandboxRecord))
	if err != nil || record.Sandbox == nil || !walled(record.Sandbox) {
		return record, err
	}
	record.Command, record.Result, record.Failed, record.Rest = nil, nil, nil, ""
	words, err := initwire.ReadRecord(filepath.Join(dir, Out, outRecord))
	if err != nil {
		return record, nil // not there yet, or not in a form that we read: init has said nothing
	}
	record.Command, record.Result, record.Failed, record.Rest = words.Command, words.Result, words.Failed, words.Rest
	return record, nil
}

// BootID is the kernel's: pids and start times mean nothing after a reboot.
func BootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("the kernel's boot id: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// appendLine adds a line to a record, whole or as an error: a full disk takes part of it.
func appendLine(fd int, line string) error {
	n, err := unix.Write(fd, []byte(line))
	if err == nil && n < len(line) {
		err = unix.ENOSPC
	}
	if err != nil {
		return fmt.Errorf("write the record of the sandbox: %w", err)
	}
	return nil
}

// forget deletes our files in the directory: no sandbox was ever started in it.
func forget(dir string) error {
	errs := []error{removeFile(filepath.Join(dir, initwire.Socket)), os.RemoveAll(filepath.Join(dir, Out)), os.RemoveAll(filepath.Join(dir, Box))}
	for _, stream := range []string{initwire.Stdout, initwire.Stderr} {
		segments, err := (&outputLog{dir: dir, stream: stream}).segments()
		errs = append(errs, err)
		for _, s := range segments {
			errs = append(errs, removeFile(filepath.Join(dir, s.name)))
		}
	}
	// Last: as long as it exists, the rest is known to be ours.
	return errors.Join(append(errs, removeFile(filepath.Join(dir, initwire.SandboxRecord)))...)
}

func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
