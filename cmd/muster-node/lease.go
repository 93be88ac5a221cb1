package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster/internal/agent/teardown"
)

const (
	// leaseSelf ends the agent with all that it runs, where that is all that there is of an instance.
	leaseSelf = "self"
	// leaseCommand bounds a command that ends the machine.
	leaseCommand = 2 * time.Minute
	// tearDownFor bounds what takes an agent apart.
	tearDownFor = 5 * time.Minute
)

// endOfLease is what ends the machine; nil if leases are not heeded.
func (f agentFlags) endOfLease(dir string, user userMode) func(context.Context) error {
	switch f.leaseEnd {
	case "":
		return nil
	case leaseSelf:
		return func(ctx context.Context) error { return endSelf(ctx, dir, f.cgroup, user) }
	}
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, leaseCommand)
		defer cancel()
		if user.inner != nil {
			if out, err := user.inner.Shell(ctx, f.leaseEnd); err != nil {
				return fmt.Errorf("%s: %w: %s", f.leaseEnd, err, out)
			}
			return nil
		}
		out, err := exec.CommandContext(ctx, "/bin/sh", "-c", f.leaseEnd).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s: %w: %s", f.leaseEnd, err, strings.TrimSpace(string(out)))
		}
		return nil
	}
}

// endSelf starts the process that takes this one apart.
func endSelf(ctx context.Context, dir, cgroup string, user userMode) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if user.inner != nil {
		return user.inner.Detach(ctx, self, "end", "--dir", dir, "--cgroup", cgroup)
	}
	cmd := exec.Command(self, "end", "--dir", dir, "--cgroup", cgroup)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	return cmd.Process.Release()
}

// endCommand takes apart what is in a directory: its agent, all that it runs, and the directory.
func endCommand() *cobra.Command {
	var dir, cgroup string
	cmd := &cobra.Command{
		Use:    "end",
		Short:  "End an agent with all that it runs, and delete its directory",
		Args:   cobra.NoArgs,
		Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), tearDownFor)
			defer cancel()
			// As the provider local names what it is about to delete: whatever interrupts this, it is swept by it.
			gone := filepath.Join(filepath.Dir(dir), "gone-"+filepath.Base(dir))
			return teardown.Do(ctx, teardown.Place{Dir: dir, Cgroup: cgroup, Gone: gone})
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "the agent's directory (required)")
	cmd.Flags().StringVar(&cgroup, "cgroup", "", "cgroup below which its sandboxes have theirs")
	if err := cmd.MarkFlagRequired("dir"); err != nil {
		panic(err)
	}
	return cmd
}
