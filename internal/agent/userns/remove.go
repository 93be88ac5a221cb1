package userns

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// removeTime bounds the deletion of a tree in a namespace.
const removeTime = 5 * time.Minute

// RemoveAll is os.RemoveAll. For an ordinary user it also deletes what containers left there that
// belongs to the ids of its range.
func RemoveAll(path string) error {
	err := os.RemoveAll(path)
	if err == nil || !errors.Is(err, fs.ErrPermission) || os.Geteuid() == 0 {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), removeTime)
	defer cancel()
	if inside := Run(ctx, "rm", "-rf", "--", path); inside != nil {
		return errors.Join(err, inside)
	}
	return nil
}

// Run runs a program as root of a user namespace that exists only for it.
func Run(ctx context.Context, argv ...string) error {
	var out strings.Builder
	var input *os.File
	start := func() (*exec.Cmd, error) {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		defer func() { _ = r.Close() }()
		if input != nil {
			_ = input.Close()
		}
		input = w
		// The program gets its rights when it is started by a root that has a map.
		cmd := exec.CommandContext(ctx, "sh", append([]string{"-c", `read -r _ && exec "$@"`, "sh"}, argv...)...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = r, &out, &out
		cmd.WaitDelay = time.Second
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, Pdeathsig: syscall.SIGKILL}
		return cmd, cmd.Start()
	}
	cmd, _, err := create(ctx, start)
	if err == nil {
		_, err = input.WriteString("\n")
		err = errors.Join(err, cmd.Wait())
	}
	if input != nil {
		_ = input.Close()
	}
	if err != nil {
		return fmt.Errorf("%s in a user namespace: %w: %s", argv[0], err, strings.TrimSpace(out.String()))
	}
	return nil
}
