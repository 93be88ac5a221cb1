package sandbox

import (
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/musterhq/muster/internal/sandbox/system"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// program is what is to be started: the command of the sandbox, or one of an execution.
type program struct {
	command, env []string
	work, user   string
	// files are its standard streams; terminal: they are one, and it controls the new session.
	files    [3]int
	terminal bool
	// makeWork: a work directory that a container does not have is made. give is as in Start.
	makeWork bool
	give     string
	// beside: it is started beside the sandbox's command, and not as that.
	beside bool
	// account: as in Exec. own is the environment that goes before it.
	account bool
	own     []string

	// who it runs as, in a container; nil: as init.
	who *identity
}

// launch starts a program in a session of its own. Its pidfd is the caller's, and so is its end.
//
// It may be called by several goroutines at once, but whoever reaps must know that children are being made, see executions.
func (s *sandbox) launch(p *program) (pid, pidfd int, failed *initwire.Failed) {
	if len(p.command) == 0 || p.command[0] == "" {
		return 0, -1, initwire.UserFault(initwire.ReasonSpec, "the command is empty")
	}
	attr := &syscall.ProcAttr{
		Dir: p.work, Env: p.env,
		Files: []uintptr{uintptr(p.files[0]), uintptr(p.files[1]), uintptr(p.files[2])},
		Sys:   &syscall.SysProcAttr{Setsid: true, Setctty: p.terminal, PidFD: &pidfd},
	}
	pidfd = -1
	if s.start.Contained {
		if failed := s.enter(p, attr); failed != nil {
			return 0, -1, failed
		}
	}
	path, failed := find(p)
	if failed != nil {
		return 0, -1, failed
	}
	if s.start.Contained {
		work, err := system.OpenInside(p.work, system.OPath|syscall.O_DIRECTORY)
		if err != nil {
			return 0, -1, explain(p, path, err)
		}
		defer func() { _ = syscall.Close(work) }()
		// Not by its name: until its exec the child has our descriptors, and a link in that name could lead through them.
		attr.Dir = system.SelfFD(work)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := cut(s.start.Capabilities); err != nil {
			return 0, -1, initwire.NodeFault("take capabilities from the command: " + err.Error())
		}
	}
	usualTimerSlack()
	attr.Env = p.env
	pid, err := syscall.ForkExec(path, p.command, attr)
	if err != nil {
		return 0, -1, explain(p, path, err)
	}
	if pidfd < 0 {
		_ = syscall.Kill(-pid, syscall.SIGKILL)
		return 0, -1, initwire.NodeFault("watch the command: this kernel gives no descriptor of a process")
	}
	return pid, pidfd, nil
}

// enter makes the program one of the user that it names, with what this user is to find.
func (s *sandbox) enter(p *program, attr *syscall.ProcAttr) *initwire.Failed {
	accounts, err := readAccounts()
	if err != nil {
		return initwire.UserFault(initwire.ReasonSpec, "user "+strconv.Quote(p.user)+": "+err.Error())
	}
	who, failed := accounts.who(p.user)
	if failed != nil {
		return failed
	}
	p.who = who
	attr.Sys.Credential = &syscall.Credential{Uid: who.uid, Gid: who.gid, Groups: who.groups, NoSetGroups: system.GroupsDenied()}
	if p.account {
		p.env = withAccount(p.env, p.own, who)
	} else if _, set := lookup(p.env, "HOME"); !set {
		p.env = append(slices.Clip(p.env), "HOME="+who.home)
	}
	if p.give != "" && (who.uid != 0 || who.gid != 0) {
		if err := give(p.give, who); err != nil {
			return initwire.NodeFault("give " + strconv.Quote(p.give) + " to user " + strconv.Quote(p.user) + ": " + err.Error())
		}
	}
	if p.makeWork {
		if failed := makeWork(p.work, who); failed != nil {
			return failed
		}
	}
	if who.uid != 0 {
		// So that it can open /dev/stdout and the like by name.
		for _, fd := range p.files {
			if fd > 2 {
				_ = syscall.Fchown(fd, int(who.uid), -1)
			}
		}
	}
	return nil
}

// withAccount is an environment in which the variables that a login sets are those of a user, but for those that own sets.
func withAccount(env, own []string, who *identity) []string {
	out := slices.Clone(env)
	for _, v := range [][2]string{{"USER", who.name}, {"LOGNAME", who.name}, {"HOME", who.home}, {"SHELL", who.shell}} {
		if _, set := lookup(own, v[0]); set {
			continue
		}
		out = slices.DeleteFunc(out, func(kv string) bool { return strings.HasPrefix(kv, v[0]+"=") })
		if v[1] != "" {
			out = append(out, v[0]+"="+v[1])
		}
	}
	return out
}

// environment is that of an execution: the sandbox's, but for the names that it gives itself. Not both, since most
// programs see the first of a name.
func (s *sandbox) environment(e *initwire.Exec) []string {
	given := make(map[string]int, len(e.Env)+1)
	var env []string
	if !e.CleanEnv && s.env != "" {
		for kv := range strings.SplitSeq(s.env, "\x00") {
			name, _, _ := strings.Cut(kv, "=")
			if e.HideEnv != "" && strings.HasPrefix(name, e.HideEnv) {
				continue
			}
			given[name] = len(env)
			env = append(env, kv)
		}
	}
	for _, kv := range e.Env {
		name, _, _ := strings.Cut(kv, "=")
		if i, ok := given[name]; ok {
			env[i] = kv
			continue
		}
		given[name] = len(env)
		env = append(env, kv)
	}
	if _, ok := given["TERM"]; e.TTY && !ok {
		env = append(env, "TERM=xterm")
	}
	return env
}
