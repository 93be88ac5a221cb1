package sandbox

import (
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/musterhq/muster/internal/sandbox/system"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// defaultPath is searched when the environment has no PATH.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// begin prepares this process and starts the command.
func (s *sandbox) begin() *initwire.Failed {
	if failed := s.settle(); failed != nil {
		return failed
	}
	outR, outW, err := system.Pipe()
	if err != nil {
		return initwire.NodeFault("make a pipe for the output: " + err.Error())
	}
	errR, errW, err := system.Pipe()
	if err != nil {
		return initwire.NodeFault("make a pipe for the output: " + err.Error())
	}
	p := &program{
		command: s.start.Command, env: s.start.Env, work: s.start.Work, user: s.start.User,
		files: [3]int{0, outW, errW}, makeWork: true, give: s.start.Give,
	}
	s.result.Started = time.Now().UnixNano()
	pid, pidfd, failed := s.launch(p)
	_ = syscall.Close(outW)
	_ = syscall.Close(errW)
	if failed != nil {
		return failed
	}
	s.pidfd = pidfd
	born, _ := system.ReadStat(pid, s.scratch)
	s.command = initwire.Process{Pid: pid, Start: born.Start}
	s.stdout = newStream(initwire.FDOutput, initwire.Stdout, s.start.OutputLimit)
	s.stderr = newStream(initwire.FDOutput, initwire.Stderr, s.start.OutputLimit)
	s.stdout.fd, s.stderr.fd = outR, errR
	for _, to := range []*stream{s.stdout, s.stderr} {
		to.disk, to.brief = s.gates.Disk, s.gates.Brief
	}
	// What was read to start the command is not needed any more, and could be megabytes. Executions get the environment too.
	s.env = strings.Join(s.start.Env, "\x00")
	s.start.Env, s.start.Command = nil, nil
	return nil
}

// settle makes this process what the parent of a command has to be.
func (s *sandbox) settle() *initwire.Failed {
	if s.start.Contained {
		if err := hide(); err != nil {
			return initwire.NodeFault("hide from the command: " + err.Error())
		}
		if s.start.Work == "" {
			s.start.Work = "/"
		}
	}
	// From here on: orphans become our children, nobody ends us by asking.
	if err := becomeSubreaper(); err != nil {
		return initwire.NodeFault("take in orphans: " + err.Error())
	}
	if err := ignoreSignals(); err != nil {
		return initwire.NodeFault("ignore signals: " + err.Error())
	}
	if os.Getpid() == 1 {
		if err := deafen(); err != nil {
			return initwire.NodeFault("ignore signals: " + err.Error())
		}
	}
	if err := limit(s.start.OpenFiles); err != nil {
		return initwire.NodeFault("set limits: " + err.Error())
	}
	if s.start.ResetOOM {
		system.SetOOMScore("self", "0")
	}
	syscall.Umask(0o022)
	return nil
}

// find is the path of the command's program: looked for in the PATH of the
// sandbox's environment, from its work directory.
func find(p *program) (path string, failed *initwire.Failed) {
	if failed := p.checkWork(); failed != nil {
		return "", failed
	}
	name := p.command[0]
	if strings.Contains(name, "/") {
		switch err := p.executable(name); err {
		case nil:
			return name, nil
		case syscall.EACCES:
			return "", notExecutable(name, "it is not a file that may be executed")
		default:
			return "", initwire.UserFault(initwire.ReasonCommandNotFound, "command "+strconv.Quote(name)+": "+err.Error())
		}
	}
	search, set := lookup(p.env, "PATH")
	if !set {
		search = defaultPath
	}
	denied := ""
	for dir := range strings.SplitSeq(search, ":") {
		if dir == "" {
			dir = "."
		}
		candidate := dir + "/" + name
		switch p.executable(candidate) {
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
	from := "PATH " + strconv.Quote(search)
	if !set {
		from = "the default path " + search + " (the environment has no PATH)"
	}
	return "", initwire.UserFault(initwire.ReasonCommandNotFound, "command "+strconv.Quote(name)+" was not found in "+from)
}

func (p *program) checkWork() *initwire.Failed {
	var st syscall.Stat_t
	if err := p.stat(p.work, &st); err != nil {
		return initwire.UserFault(initwire.ReasonNoWorkdir, "work directory "+strconv.Quote(p.work)+": "+err.Error())
	}
	if st.Mode&syscall.S_IFMT != syscall.S_IFDIR {
		return initwire.UserFault(initwire.ReasonNoWorkdir, "work directory "+strconv.Quote(p.work)+": not a directory")
	}
	return nil
}

func (p *program) stat(path string, st *syscall.Stat_t) error {
	if p.who != nil {
		return system.StatInside(path, st)
	}
	return syscall.Stat(path, st)
}

// executable is nil, or EACCES if there is something that cannot be executed, or why there is nothing.
func (p *program) executable(path string) error {
	if !strings.HasPrefix(path, "/") {
		path = p.work + "/" + path
	}
	var st syscall.Stat_t
	if err := p.stat(path, &st); err != nil {
		return err
	}
	if st.Mode&syscall.S_IFMT != syscall.S_IFREG || !p.mayExecute(path, &st) {
		return syscall.EACCES
	}
	return nil
}

func (p *program) mayExecute(path string, st *syscall.Stat_t) bool {
	if p.who == nil {
		return syscall.Access(path, 1) == nil
	}
	who := p.who
	switch {
	case who.uid == 0:
		return st.Mode&0o111 != 0
	case who.uid == st.Uid:
		return st.Mode&0o100 != 0
	case who.gid == st.Gid || slices.Contains(who.groups, st.Gid):
		return st.Mode&0o010 != 0
	}
	return st.Mode&0o001 != 0
}

// explain says why a command whose program was found did not start.
func explain(p *program, path string, err error) *initwire.Failed {
	// The directory may have gone since it was looked at, and the kernel does not say which step failed.
	if failed := p.checkWork(); failed != nil {
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
	case syscall.EAGAIN:
		if p.beside {
			return initwire.UserFault(initwire.ReasonProcessLimit, "command "+strconv.Quote(path)+" cannot be started: the sandbox has as many processes and threads as it may have (resources.pids)")
		}
	case syscall.E2BIG:
		return initwire.UserFault(initwire.ReasonSpec, "command and environment together are "+strconv.Itoa(p.size())+" bytes, more than the system takes")
	case syscall.ENAMETOOLONG:
		return initwire.UserFault(initwire.ReasonCommandNotFound, "command "+strconv.Quote(path)+": "+err.Error())
	}
	return initwire.NodeFault("start the process of command " + strconv.Quote(path) + ": " + err.Error())
}

func (p *program) size() (n int) {
	for _, list := range [][]string{p.command, p.env} {
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
	return initwire.UserFault(initwire.ReasonNotExecutable, "command "+strconv.Quote(path)+" cannot be executed: "+why)
}
