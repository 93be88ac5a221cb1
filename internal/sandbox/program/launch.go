package program

import (
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/musterhq/muster/internal/sandbox/account"
	"github.com/musterhq/muster/internal/sandbox/system"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// Program is what is to be started: the command of the sandbox, or one of an execution.
type Program struct {
	Command, Env []string
	// Work is its work directory. User is as in account.Files.Who; it counts only in a container.
	Work, User string
	// Files are its standard streams.
	Files [3]int
	// Terminal: the standard streams are one terminal, which controls the new session.
	Terminal bool
	// MakeWork: a work directory that a container does not have is made.
	MakeWork bool
	// Give is a directory of the container whose owner the user becomes, with all that is in it;
	// empty: none.
	Give string
	// Beside: it is started beside the sandbox's command. That decides who is to blame for a full
	// process limit.
	Beside bool
	// Account: USER, LOGNAME, HOME and SHELL are set as at a login of the user, but for those that
	// Own sets.
	Account bool
	Own     []string

	// who is the user in a container; nil: the program runs as init does.
	who *account.User
}

// Launcher starts programs. It is the same for all programs of a sandbox.
type Launcher struct {
	// Contained: init is process 1 of a container, and programs have users and a root of their own.
	Contained bool
	// Capabilities are those that a program of a container gets at most.
	Capabilities uint64
}

// busyFor is how long a program that somebody writes to is tried again.
const busyFor = 500 * time.Millisecond

// Launch starts a program in a session of its own. The caller must close its pidfd, and reap it.
//
// Several goroutines may call it at once, but whoever reaps must know that children are being made,
// see package execs.
func (l Launcher) Launch(p *Program) (pid, pidfd int, failed *initwire.Failed) {
	if len(p.Command) == 0 || p.Command[0] == "" {
		return 0, -1, initwire.UserFault(initwire.ReasonSpec, "the command is empty")
	}
	attr := &syscall.ProcAttr{
		Dir: p.Work, Env: p.Env,
		Files: []uintptr{uintptr(p.Files[0]), uintptr(p.Files[1]), uintptr(p.Files[2])},
		Sys:   &syscall.SysProcAttr{Setsid: true, Setctty: p.Terminal, PidFD: &pidfd},
	}
	pidfd = -1
	if l.Contained {
		if failed := enter(p, attr); failed != nil {
			return 0, -1, failed
		}
	}
	path, failed := find(p)
	if failed != nil {
		return 0, -1, failed
	}
	if l.Contained {
		// The work directory is looked up here, where no magic link is followed.
		work, err := system.OpenInside(p.Work, system.OPath|syscall.O_DIRECTORY)
		if err != nil {
			return 0, -1, explain(p, path, err)
		}
		defer func() { _ = syscall.Close(work) }()
		// Not by its name: until its exec the child has init's descriptors, and a link in that name
		// could lead through them.
		attr.Dir = system.SelfFD(work)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := cut(l.Capabilities); err != nil {
			return 0, -1, initwire.NodeFault("take capabilities from the command: " + err.Error())
		}
	}
	// The program inherits the timer slack of the thread that forks it.
	usualTimerSlack()
	attr.Env = p.Env
	pid, err := syscall.ForkExec(path, p.Command, attr)
	// Whoever wrote the program may have forked meanwhile: until its exec, such a child holds the file
	// open for writing too, and the kernel starts no program that somebody writes to.
	for pause := time.Millisecond; err == syscall.ETXTBSY && pause < busyFor; pause *= 2 {
		time.Sleep(pause)
		pid, err = syscall.ForkExec(path, p.Command, attr)
	}
	if err != nil {
		return 0, -1, explain(p, path, err)
	}
	// Without a pidfd its death could not be told from that of a stranger with the same number.
	if pidfd < 0 {
		_ = syscall.Kill(-pid, syscall.SIGKILL)
		return 0, -1, initwire.NodeFault("watch the command: this kernel gives no descriptor of a process")
	}
	return pid, pidfd, nil
}

// enter resolves the program's user, and gives this user what it must find: its variables, its work
// directory, its streams.
func enter(p *Program, attr *syscall.ProcAttr) *initwire.Failed {
	accounts, err := account.Read()
	if err != nil {
		return initwire.UserFault(initwire.ReasonSpec, "user "+strconv.Quote(p.User)+": "+err.Error())
	}
	who, failed := accounts.Who(p.User)
	if failed != nil {
		return failed
	}
	if who.UID != 0 || who.GID != 0 {
		if failed := unmapped(p.User, who); failed != nil {
			return failed
		}
	}
	p.who = who
	attr.Sys.Credential = &syscall.Credential{Uid: who.UID, Gid: who.GID, Groups: who.Groups, NoSetGroups: system.GroupsDenied()}
	if p.Account {
		p.Env = withAccount(p.Env, p.Own, who)
	} else if _, set := lookup(p.Env, "HOME"); !set {
		p.Env = append(slices.Clip(p.Env), "HOME="+who.Home)
	}
	if p.Give != "" && (who.UID != 0 || who.GID != 0) {
		if err := give(p.Give, who); err != nil {
			return initwire.NodeFault("give " + strconv.Quote(p.Give) + " to user " + strconv.Quote(p.User) + ": " + err.Error())
		}
	}
	if p.MakeWork {
		if failed := makeWork(p.Work, who); failed != nil {
			return failed
		}
	}
	if who.UID != 0 {
		// So that it can open /dev/stdout and the like by name.
		for _, fd := range p.Files {
			if fd > 2 {
				_ = syscall.Fchown(fd, int(who.UID), -1)
			}
		}
	}
	return nil
}

// unmapped says that the user or its group is not in the container's user namespace. The kernel
// would only say "invalid argument".
func unmapped(user string, who *account.User) *initwire.Failed {
	kind, id, ids := "user", uint64(who.UID), system.IDs(false)
	if id < ids {
		kind, id, ids = "group", uint64(who.GID), system.IDs(true)
	}
	if id < ids {
		return nil
	}
	what := kind + " " + strconv.FormatUint(id, 10)
	if user != "" && user != strconv.FormatUint(id, 10) {
		what += " (of user " + strconv.Quote(user) + ")"
	}
	if ids > 1 {
		return initwire.UserFault(initwire.ReasonSpec, what+" is not mapped: the user namespace of this container has the ids 0 to "+
			strconv.FormatUint(ids-1, 10)+"; give --user one of these")
	}
	return initwire.UserFault(initwire.ReasonSpec, what+" is not mapped: the agent runs as an ordinary user, so that this container has one user, root; "+
		"use --user 0, or give the ordinary user more ids in /etc/subuid and /etc/subgid (docs/containers.md)")
}

// withAccount is an environment with the variables that a login sets, for a user, but for those
// that own sets.
func withAccount(env, own []string, who *account.User) []string {
	out := slices.Clone(env)
	for _, v := range [][2]string{{"USER", who.Name}, {"LOGNAME", who.Name}, {"HOME", who.Home}, {"SHELL", who.Shell}} {
		// What the job or the client sets itself counts.
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

// Environment is that of an execution: the sandbox's, whose variables are parted by zero bytes, but
// for the names that the execution sets itself. A name comes once, because most programs see only
// the first of several.
func Environment(sandbox string, e *initwire.Exec) []string {
	given := make(map[string]int, len(e.Env)+1)
	var env []string
	if !e.CleanEnv && sandbox != "" {
		for kv := range strings.SplitSeq(sandbox, "\x00") {
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
