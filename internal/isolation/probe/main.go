// Command probe is what the tests of isolation run inside a sandbox: attempts to get out of it, to see what it
// must not see or to harm what is not its own, each by system calls of its own, as far as it does no harm where it succeeds.
//
//	probe list          the names of all attempts
//	probe all           each of them in a process of its own
//	probe each NAME…    these
//	probe NAME…         these, in this process
//
// Each prints a line: name, verdict (held, BROKEN, absent), and what was answered. Started as process 1 with an init's
// descriptors it is an init that has been taken over, see evil.go.
//
// It must never destroy anything when an attempt succeeds: it runs on the machines of developers. Only package
// internal/isolation starts it.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"
)

// verdict is what came of an attempt.
type verdict struct {
	word   string
	detail string
}

func held(format string, args ...any) verdict { return verdict{"held", fmt.Sprintf(format, args...)} }
func broken(format string, args ...any) verdict {
	return verdict{"BROKEN", fmt.Sprintf(format, args...)}
}

// absent: this kernel or this test gives nothing to try.
func absent(format string, args ...any) verdict {
	return verdict{"absent", fmt.Sprintf(format, args...)}
}

type attempt struct {
	name string
	try  func() verdict
}

func attempts() []attempt {
	return slices.Concat(mountAttempts(), kernelAttempts(), doorAttempts(), ruleAttempts(), initAttempts(), harmAttempts(), reachAttempts(),
		procAttempts(), neighbourAttempts(), fileAttempts(), deviceAttempts(), privilegeAttempts(), networkAttempts())
}

// patience is for one attempt.
const patience = 60 * time.Second

func main() {
	if os.Getpid() == 1 && len(os.Args) == 2 {
		beInit()
		return
	}
	names := os.Args[1:]
	if len(names) == 0 {
		fmt.Fprintln(os.Stderr, "usage: probe list | all | NAME…")
		os.Exit(2)
	}
	all := attempts()
	switch names[0] {
	case "list":
		for _, a := range all {
			fmt.Println(a.name)
		}
		return
	case "all":
		for _, a := range all {
			alone(a.name)
		}
		return
	case "each":
		for _, name := range names[1:] {
			alone(name)
		}
		return
	case "--version": // as an init's program is asked
		return
	case "euid":
		fmt.Println(os.Geteuid())
		return
	case "sleep":
		time.Sleep(time.Hour)
		return
	case "strangle":
		strangle()
		return
	}
	for _, name := range names {
		at := slices.IndexFunc(all, func(a attempt) bool { return a.name == name })
		if at < 0 {
			fmt.Fprintf(os.Stderr, "probe: no attempt %q\n", name)
			os.Exit(2)
		}
		v := all[at].try()
		fmt.Printf("%s\t%s\t%s\n", name, v.word, strings.ReplaceAll(v.detail, "\n", " "))
	}
}

// alone runs one attempt in a process of its own: some end their process.
func alone(name string) {
	cmd := exec.Command(os.Args[0], name)
	cmd.WaitDelay = time.Second
	timer := time.AfterFunc(patience, func() {
		if cmd.Process != nil {
			_ = cmd.Process.Kill()
		}
	})
	defer timer.Stop()
	out, err := cmd.CombinedOutput()
	if strings.HasPrefix(string(out), name+"\t") {
		fmt.Print(string(out))
		return
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() && status.Signal() == syscall.SIGSYS {
			fmt.Printf("%s\theld\tended by the filter\n", name)
			return
		}
	}
	fmt.Printf("%s\tBROKEN\tthe attempt itself broke: %v: %.200q\n", name, err, out)
}

// refused is how a kernel or a filter says no; anything else is a yes, or a no for a reason that the next attempt would avoid.
func refused(err error, also ...syscall.Errno) bool {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return false
	}
	switch errno {
	case syscall.EPERM, syscall.EACCES, syscall.ENOSYS, syscall.EROFS:
		return true
	}
	return slices.Contains(also, errno)
}

// judge is the verdict on an attempt that must be refused.
func judge(err error, also ...syscall.Errno) verdict {
	switch {
	case err == nil:
		return broken("it worked")
	case refused(err, also...):
		return held("%v", err)
	}
	return broken("not refused: %v", err)
}

// each is the verdict on several attempts, of which all must be refused.
func each(tries map[string]func() error, also ...syscall.Errno) verdict {
	names := make([]string, 0, len(tries))
	for name := range tries {
		names = append(names, name)
	}
	slices.Sort(names)
	var words []string
	for _, name := range names {
		v := judge(tries[name](), also...)
		if v.word == "BROKEN" {
			return broken("%s: %s", name, v.detail)
		}
		words = append(words, name+": "+v.detail)
	}
	return held("%s", strings.Join(words, "; "))
}

// call makes a system call.
func call(number uintptr, args ...uintptr) error {
	var a [6]uintptr
	copy(a[:], args)
	if _, _, errno := syscall.Syscall6(number, a[0], a[1], a[2], a[3], a[4], a[5]); errno != 0 {
		return errno
	}
	return nil
}
