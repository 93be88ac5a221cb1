package sandbox

import (
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/musterhq/muster/internal/sandbox/output"
	"github.com/musterhq/muster/internal/sandbox/program"
	"github.com/musterhq/muster/internal/sandbox/system"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

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
	p := &program.Program{
		Command: s.start.Command, Env: s.start.Env, Work: s.start.Work, User: s.start.User,
		Files: [3]int{0, outW, errW}, MakeWork: true, Give: s.start.Give,
	}
	s.result.Started = time.Now().UnixNano()
	pid, pidfd, failed := s.launcher().Launch(p)
	_ = syscall.Close(outW)
	_ = syscall.Close(errW)
	if failed != nil {
		return failed
	}
	s.pidfd = pidfd
	born, _ := system.ReadStat(pid, s.scratch)
	s.command = initwire.Process{Pid: pid, Start: born.Start}
	s.stdout = output.NewStream(initwire.FDOutput, initwire.Stdout, s.start.OutputLimit)
	s.stderr = output.NewStream(initwire.FDOutput, initwire.Stderr, s.start.OutputLimit)
	s.stdout.FD, s.stderr.FD = outR, errR
	for _, to := range []*output.Stream{s.stdout, s.stderr} {
		to.Disk, to.Brief = s.gates.Disk, s.gates.Brief
	}
	// What was read to start the command is not needed any more, and could be megabytes. Executions
	// get the environment too.
	s.env = strings.Join(s.start.Env, "\x00")
	s.start.Env, s.start.Command = nil, nil
	return nil
}

// launcher starts the command and all executions.
func (s *sandbox) launcher() program.Launcher {
	return program.Launcher{Contained: s.start.Contained, Capabilities: s.start.Capabilities}
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
