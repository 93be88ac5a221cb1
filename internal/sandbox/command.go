package sandbox

import (
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	initwire "github.com/musterhq/muster/internal/wire/init"
)

// defaultPath is searched when the environment has no PATH.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// begin prepares this process and starts the command.
func (s *sandbox) begin() *initwire.Failed {
	// From here on: orphans become our children, nobody ends us by asking.
	if err := becomeSubreaper(); err != nil {
		return nodeFault("take in orphans: " + err.Error())
	}
	if err := ignoreSignals(); err != nil {
		return nodeFault("ignore signals: " + err.Error())
	}
	if err := limit(s.start.OpenFiles); err != nil {
		return nodeFault("set limits: " + err.Error())
	}
	if s.start.ResetOOM {
		setOOMScore("0")
	}
	syscall.Umask(0o022)
	path, failed := find(s.start)
	if failed != nil {
		return failed
	}
	outR, outW, err := pipe()
	if err != nil {
		return nodeFault("make a pipe for the output: " + err.Error())
	}
	errR, errW, err := pipe()
	if err != nil {
		return nodeFault("make a pipe for the output: " + err.Error())
	}
	usualTimerSlack()
	s.result.Started = time.Now().UnixNano()
	pid, err := syscall.ForkExec(path, s.start.Command, &syscall.ProcAttr{
		Dir:   s.start.Work,
		Env:   s.start.Env,
		Files: []uintptr{0, uintptr(outW), uintptr(errW)},
		Sys:   &syscall.SysProcAttr{Setsid: true, PidFD: &s.pidfd},
	})
	_ = syscall.Close(outW)
	_ = syscall.Close(errW)
	if err != nil {
		return explain(s.start, path, err)
	}
	if s.pidfd < 0 {
		_ = syscall.Kill(-pid, syscall.SIGKILL)
		return nodeFault("watch the command: this kernel gives no descriptor of a process")
	}
	born, _ := stat(pid, s.scratch)
	s.command = initwire.Process{Pid: pid, Start: born.Start}
	s.stdout = newStream(initwire.FDOutput, initwire.Stdout, s.start.OutputLimit)
	s.stderr = newStream(initwire.FDOutput, initwire.Stderr, s.start.OutputLimit)
	s.stdout.fd, s.stderr.fd = outR, errR
	// What was read to start the command is not needed any more, and could be megabytes.
	s.start.Env, s.start.Command = nil, nil
	return nil
}

// find is the path of the command's program: looked for in the PATH of the
// sandbox's environment, from its work directory.
func find(start *initwire.Start) (path string, failed *initwire.Failed) {
	if failed := checkWork(start.Work); failed != nil {
		return "", failed
	}
	if len(start.Command) == 0 || start.Command[0] == "" {
		return "", userFault(initwire.ReasonSpec, "the command is empty")
	}
	name := start.Command[0]
	if strings.Contains(name, "/") {
		switch err := executable(start.Work, name); err {
		case nil:
			return name, nil
		case syscall.EACCES:
			return "", notExecutable(name, "it is not a file that may be executed")
		default:
			return "", userFault(initwire.ReasonCommandNotFound, "command "+quote(name)+": "+err.Error())
		}
	}
	search, set := lookup(start.Env, "PATH")
	if !set {
		search = defaultPath
	}
	denied := ""
	for dir := range strings.SplitSeq(search, ":") {
		if dir == "" {
			dir = "."
		}
		candidate := dir + "/" + name
		switch executable(start.Work, candidate) {
		case nil:
			return candidate, nil
		case syscall.EACCES:
			if denied == "" {
				denied = candidate
			}
		}
	}
	if denied != "" {
		return "", notExecutable(denied, "it is not a file that may be executed")
	}
	from := "PATH " + quote(search)
	if !set {
		from = "the default path " + search + " (the environment has no PATH)"
	}
	return "", userFault(initwire.ReasonCommandNotFound, "command "+quote(name)+" was not found in "+from)
}

func checkWork(work string) *initwire.Failed {
	var st syscall.Stat_t
	if err := syscall.Stat(work, &st); err != nil {
		return userFault(initwire.ReasonNoWorkdir, "work directory "+quote(work)+": "+err.Error())
	}
	if st.Mode&syscall.S_IFMT != syscall.S_IFDIR {
		return userFault(initwire.ReasonNoWorkdir, "work directory "+quote(work)+": not a directory")
	}
	return nil
}

// executable is nil, or EACCES if there is something that cannot be executed, or why there is nothing.
func executable(work, path string) error {
	if !strings.HasPrefix(path, "/") {
		path = work + "/" + path
	}
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		return err
	}
	if st.Mode&syscall.S_IFMT != syscall.S_IFREG || syscall.Access(path, 1) != nil {
		return syscall.EACCES
	}
	return nil
}

// explain says why a command whose program was found did not start.
func explain(start *initwire.Start, path string, err error) *initwire.Failed {
	// The directory may have gone since it was looked at, and the kernel does not say which step failed.
	if failed := checkWork(start.Work); failed != nil {
		return failed
	}
	switch err {
	case syscall.ENOEXEC:
		return notExecutable(path, "neither a program for "+runtime.GOARCH+" nor a script that begins with #!")
	case syscall.ENOENT, syscall.ENOTDIR, syscall.ELOOP, syscall.ELIBBAD:
		return notExecutable(path, "the interpreter that it names does not exist")
	case syscall.EACCES, syscall.EPERM:
		return notExecutable(path, "it or its interpreter may not be executed here, or the work directory not entered")
	case syscall.ETXTBSY:
		return notExecutable(path, "somebody is writing to it")
	case syscall.EINVAL, syscall.EISDIR:
		return notExecutable(path, err.Error())
	case syscall.E2BIG:
		return userFault(initwire.ReasonSpec, "command and environment together are "+strconv.Itoa(size(start))+" bytes, more than the system takes")
	case syscall.ENAMETOOLONG:
		return userFault(initwire.ReasonCommandNotFound, "command "+quote(path)+": "+err.Error())
	}
	return nodeFault("start the process of command " + quote(path) + ": " + err.Error())
}

func size(start *initwire.Start) (n int) {
	for _, list := range [][]string{start.Command, start.Env} {
		for _, v := range list {
			n += len(v) + 1
		}
	}
	return n
}

// lookup is the last value of a variable, as a shell would see it.
func lookup(env []string, name string) (value string, set bool) {
	for _, kv := range env {
		if k, v, ok := strings.Cut(kv, "="); ok && k == name {
			value, set = v, true
		}
	}
	return value, set
}

func notExecutable(path, why string) *initwire.Failed {
	return userFault(initwire.ReasonNotExecutable, "command "+quote(path)+" cannot be executed: "+why)
}

func userFault(reason, message string) *initwire.Failed {
	return &initwire.Failed{Class: initwire.ClassUser, Reason: reason, Message: message}
}

func nodeFault(message string) *initwire.Failed {
	return &initwire.Failed{Class: initwire.ClassNode, Reason: initwire.ReasonNodeFault, Message: message}
}

func quote(s string) string { return strconv.Quote(s) }
