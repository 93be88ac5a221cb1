package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// machine is one to be booted.
type machine struct {
	kernel, initrd, disk string
	// memory in MiB.
	memory  int
	verbose bool
	tests   []string
}

// run boots it and reads its console until it ends.
func (m *machine) run(ctx context.Context) error {
	// No test can print what it does not know.
	mark := "vm-" + rand.Text()
	console := "quiet loglevel=3"
	if m.verbose {
		console = "loglevel=5"
	}
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64",
		"-M", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-nodefaults", "-no-reboot",
		"-m", strconv.Itoa(m.memory), "-smp", "2", "-display", "none", "-serial", "stdio",
		"-kernel", m.kernel, "-initrd", m.initrd, "-append", "console=ttyS0 panic=-1 no_timer_check "+console+" vm.mark="+mark,
		"-drive", "file="+m.disk+",format=raw,if=none,id=d0,cache=unsafe,snapshot=off", "-device", "virtio-blk-pci,drive=d0",
	)
	cmd.WaitDelay = 5 * time.Second
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("qemu-system-x86 is not installed: %w", err)
	}
	verdict := listen(out, mark, m.tests)
	err = cmd.Wait()
	if ctx.Err() != nil {
		return fmt.Errorf("the machine was ended: %w", context.Cause(ctx))
	}
	return errors.Join(verdict, err)
}

// listen prints what the machine says, and returns its verdict.
func listen(console io.Reader, mark string, tests []string) error {
	lines := bufio.NewReader(console)
	began := time.Now()
	passed := map[string]bool{}
	var bad []string
	over := false
	for {
		line, err := lines.ReadString('\n')
		said, ours := strings.CutPrefix(strings.TrimRight(line, "\r\n"), mark+" ")
		words := strings.Fields(said)
		switch {
		case !ours:
			fmt.Print(strings.ReplaceAll(line, "\r", ""))
		case words[0] == "begin":
			began = time.Now()
			fmt.Printf("=== %s\n", words[1])
		case words[0] == "end":
			fmt.Printf("=== %s: exit %s after %.0f s\n", words[1], words[2], time.Since(began).Seconds())
			if passed[words[1]] = words[2] == "0"; !passed[words[1]] {
				bad = append(bad, words[1])
			}
		case words[0] == "over":
			over = true
		}
		if err == nil {
			continue
		}
		if !errors.Is(err, io.EOF) {
			return err
		}
		if len(bad) > 0 {
			return &failedTests{names: strings.Join(bad, ", ")}
		}
		if !over || len(passed) != len(tests) {
			return fmt.Errorf("the machine ended after %d of %d packages", len(passed), len(tests))
		}
		return nil
	}
}
