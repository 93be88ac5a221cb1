package program

import (
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/musterhq/muster/internal/sandbox/system"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// defaultPath is searched when the environment has no PATH.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// find is the path of the program's file. A name without a slash is looked for in the PATH of the
// program's environment, from its work directory.
func find(p *Program) (path string, failed *initwire.Failed) {
	if failed := p.checkWork(); failed != nil {
		return "", failed
	}
	name := p.Command[0]
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
	search, set := lookup(p.Env, "PATH")
	if !set {
		search = defaultPath
	}
	// A file that may not be executed is the better reason, if nothing else is found.
	denied := ""
	for dir := range strings.SplitSeq(search, ":") {
		// An empty part of PATH is the work directory.
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

// checkWork says what is wrong with the work directory, if anything is.
func (p *Program) checkWork() *initwire.Failed {
	var st syscall.Stat_t
	if err := p.stat(p.Work, &st); err != nil {
		return initwire.UserFault(initwire.ReasonNoWorkdir, "work directory "+strconv.Quote(p.Work)+": "+err.Error())
	}
	if st.Mode&syscall.S_IFMT != syscall.S_IFDIR {
		return initwire.UserFault(initwire.ReasonNoWorkdir, "work directory "+strconv.Quote(p.Work)+": not a directory")
	}
	return nil
}

// stat is the system call. In a container it follows none of the kernel's magic links.
func (p *Program) stat(path string, st *syscall.Stat_t) error {
	if p.who != nil {
		return system.StatInside(path, st)
	}
	return syscall.Stat(path, st)
}

// executable answers nil if a path can be executed, EACCES if what is there cannot, and else why
// nothing is there.
func (p *Program) executable(path string) error {
	if !strings.HasPrefix(path, "/") {
		path = p.Work + "/" + path
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

// mayExecute reports whether the mode of a file lets the program's user execute it. In a container
// init has all rights, so that the kernel cannot be asked.
func (p *Program) mayExecute(path string, st *syscall.Stat_t) bool {
	if p.who == nil {
		return syscall.Access(path, 1) == nil
	}
	who := p.who
	switch {
	case who.UID == 0:
		return st.Mode&0o111 != 0
	case who.UID == st.Uid:
		return st.Mode&0o100 != 0
	case who.GID == st.Gid || slices.Contains(who.Groups, st.Gid):
		return st.Mode&0o010 != 0
	}
	return st.Mode&0o001 != 0
}

// explain says why a program that was found did not start, and whose fault that is.
func explain(p *Program, path string, err error) *initwire.Failed {
	// The directory may have gone since it was looked at, and the kernel does not say which step
	// failed.
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
		if p.Beside {
			return initwire.UserFault(initwire.ReasonProcessLimit, "command "+strconv.Quote(path)+" cannot be started: the sandbox has as many processes and threads as it may have (resources.pids)")
		}
	// The kernel does not say how much would fit.
	case syscall.E2BIG:
		return initwire.UserFault(initwire.ReasonSpec, "command and environment together are "+strconv.Itoa(p.size())+" bytes, more than the system takes")
	case syscall.ENAMETOOLONG:
		return initwire.UserFault(initwire.ReasonCommandNotFound, "command "+strconv.Quote(path)+": "+err.Error())
	}
	return initwire.NodeFault("start the process of command " + strconv.Quote(path) + ": " + err.Error())
}

// size is how many bytes command and environment have together, as the kernel counts them.
func (p *Program) size() (n int) {
	for _, list := range [][]string{p.Command, p.Env} {
		for _, v := range list {
			n += len(v) + 1
		}
	}
	return n
}

// lookup is the last value of a variable, because that is the one that a shell sees.
func lookup(env []string, name string) (value string, set bool) {
	for _, kv := range env {
		if k, v, ok := strings.Cut(kv, "="); ok && k == name {
			value, set = v, true
		}
	}
	return value, set
}

// notExecutable is the failure of a user whose program cannot be executed.
func notExecutable(path, why string) *initwire.Failed {
	return initwire.UserFault(initwire.ReasonNotExecutable, "command "+strconv.Quote(path)+" cannot be executed: "+why)
}
