package runtimetest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
)

// startCases: what a command is started with, and what if it cannot be.
func startCases() []testCase {
	return []testCase{
		{"start/command not found", notFound},
		{"start/path not found", pathNotFound},
		{"start/not executable", notExecutable},
		{"start/interpreter missing", noInterpreter},
		{"start/written meanwhile", writtenMeanwhile},
		{"start/written for ever", writtenForEver},
		{"start/work directory missing", noWorkdir},
		{"start/empty command", emptyCommand},
		{"start/command line too long", tooLong},
		{"start/cancelled", cancelled},
		{"start/twice in one directory", twice},
		{"start/no image where none can be", noImage},
		{"start/found in PATH", foundInPath},
		{"start/relative to the work directory", relative},
		{"start/arguments arrive exactly", arguments},
		{"start/environment is exact", environment},
		{"start/work directory", workdir},
		{"start/clean process", cleanProcess},
	}
}

func notFound(r *rig) {
	c := r.config(program{argv: []string{"no-such-program", "x"}, fake: []string{"no-such-program", "x"}})
	says := []string{`"no-such-program"`}
	if !r.suite.Scripted {
		c.Env = append(c.Env, "PATH=/nowhere:/usr/bin")
		says = append(says, "/nowhere:/usr/bin")
	}
	r.refuse(c, muster.FailureUser, muster.ReasonCommandNotFound, says...)
}

func pathNotFound(r *rig) {
	c := r.config(program{argv: []string{"/no/such/program"}})
	r.refuse(c, muster.FailureUser, muster.ReasonCommandNotFound, "/no/such/program")
}

// script writes a file into the work directory.
func (r *rig) script(c contract.SandboxConfig, name, text string, mode os.FileMode) {
	r.Helper()
	path := filepath.Join(c.Work, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		r.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		r.Fatal(err)
	}
}

func notExecutable(r *rig) {
	c := r.config(program{argv: []string{"./plain.txt"}})
	r.script(c, "plain.txt", "words", 0o600)
	r.refuse(c, muster.FailureUser, muster.ReasonNotExecutable, "plain.txt")

	c = r.config(program{argv: []string{"./no-format"}})
	r.script(c, "no-format", "neither a program nor a script", 0o700)
	r.refuse(c, muster.FailureUser, muster.ReasonNotExecutable, "no-format")

	c = r.config(program{argv: []string{"./folder"}})
	r.script(c, "folder/x", "", 0o600)
	r.refuse(c, muster.FailureUser, muster.ReasonNotExecutable, "folder")
}

func noInterpreter(r *rig) {
	c := r.config(program{argv: []string{"./script"}})
	r.script(c, "script", "#!/no/such/interpreter\n", 0o700)
	r.refuse(c, muster.FailureUser, muster.ReasonNotExecutable, "script", "interpreter")
}

// writtenMeanwhile: a program that somebody has open for writing for a moment is waited for.
func writtenMeanwhile(r *rig) {
	c := r.config(program{argv: []string{"./script"}})
	f := r.openScript(c)
	time.AfterFunc(20*time.Millisecond, func() { _ = f.Close() })
	if s := r.start(c); r.wait(s).Failure != nil || r.output(s, "stdout") != "written\n" {
		r.Errorf("%v, %q", s.Result().Failure, r.output(s, "stdout"))
	}
}

func writtenForEver(r *rig) {
	c := r.config(program{argv: []string{"./script"}})
	defer func(f *os.File) { _ = f.Close() }(r.openScript(c))
	r.refuse(c, muster.FailureUser, muster.ReasonNotExecutable, "script", "somebody is writing to it")
}

// openScript makes a script and opens it for writing.
func (r *rig) openScript(c contract.SandboxConfig) *os.File {
	r.Helper()
	r.script(c, "script", "#!/bin/sh\necho written\n", 0o700)
	f, err := os.OpenFile(filepath.Join(c.Work, "script"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		r.Fatal(err)
	}
	return f
}

func noWorkdir(r *rig) {
	if r.suite.Image == nil { // in a container it is made
		c := r.config(program{argv: []string{"true"}, fake: []string{"exit", "0"}})
		c.Work = filepath.Join(c.Work, "is-not-there")
		r.refuse(c, muster.FailureUser, muster.ReasonNoWorkdir, "is-not-there")
	}

	c := r.config(program{argv: []string{"true"}, fake: []string{"exit", "0"}})
	r.script(c, "a-file", "", 0o600)
	c.Work = filepath.Join(c.Work, "a-file")
	r.refuse(c, muster.FailureUser, muster.ReasonNoWorkdir, "a-file")
}

func emptyCommand(r *rig) {
	c := r.config(program{argv: []string{"true"}, fake: []string{"exit", "0"}})
	c.Command = nil
	r.refuse(c, muster.FailureUser, muster.ReasonSpec)
}

func tooLong(r *rig) {
	c := r.config(program{argv: []string{"true"}})
	c.Env = append(c.Env, "LONG="+strings.Repeat("x", 200_000)) // Linux takes 128 KiB for one
	r.refuse(c, muster.FailureUser, muster.ReasonSpec, "bytes")

	c = r.config(program{argv: []string{"true"}})
	for range 100 { // together far over the size of a pipe or socket buffer, but allowed
		c.Command = append(c.Command, strings.Repeat("y", 10_000))
	}
	if result := r.wait(r.start(c)); result.Failure != nil {
		r.Errorf("a megabyte of arguments: %v", result.Failure)
	}
}

func cancelled(r *rig) {
	c := r.config(program{sh: "sleep 400", fake: []string{"sleep", "400s"}})
	ctx, cancel := context.WithCancel(r.Context())
	cancel()
	s, err := r.runtime.Start(ctx, c)
	if err == nil {
		// It may win the race; then it runs like any other.
		r.removeLater(c.Dir)
		_ = s.Close()
		return
	}
	var failure *muster.Failure
	if !errors.As(err, &failure) || failure.Class != muster.FailureNode {
		r.Errorf("error %v, want a failure of the node", err)
	}
}

func twice(r *rig) {
	c := r.config(program{sh: "sleep 500", fake: []string{"sleep", "500s"}})
	s := r.start(c)
	if _, err := r.runtime.Start(r.Context(), c); err == nil {
		r.Fatal("the second start in one directory did not fail")
	}
	select {
	case <-s.Done():
		r.Errorf("the second start ended the first: %v", s.Result().Failure)
	default:
	}
	s.Stop(0)
	r.wait(s)
}

func noImage(r *rig) {
	if r.suite.Image != nil {
		r.Skip("this runtime has images")
	}
	c := r.config(program{argv: []string{"true"}, fake: []string{"exit", "0"}})
	c.Container = &contract.Container{Image: &contract.Image{Ref: "example.com/no/image:1"}}
	r.refuse(c, muster.FailureUser, muster.ReasonNoRuntime, "example.com/no/image:1")
}

func foundInPath(r *rig) {
	c := r.config(program{argv: []string{"greet"}})
	r.script(c, "one/greet", "not this one", 0o600)
	r.script(c, "two/greet", "#!/bin/sh\necho \"$0 from two\"\n", 0o700)
	c.Env = append(c.Env, "PATH="+c.Work+"/one:two:/usr/bin:/bin")
	s := r.start(c)
	if result := r.wait(s); result.Failure != nil {
		r.Fatal(result.Failure)
	}
	if out := r.output(s, "stdout"); out != "two/greet from two\n" {
		r.Errorf("output %q", out)
	}
}

func relative(r *rig) {
	c := r.config(program{argv: []string{"./here"}})
	r.script(c, "here", "#!/bin/sh\necho here\n", 0o700)
	s := r.start(c)
	if result := r.wait(s); result.Failure != nil || r.output(s, "stdout") != "here\n" {
		r.Errorf("%v, output %q", result.Failure, r.output(s, "stdout"))
	}
}

func arguments(r *rig) {
	args := []string{"two words", "$HOME", `"quo'ted"`, "new\nline", "", "ünïcödé", "*", "-n"}
	c := r.config(program{argv: append([]string{"printf", `%s|`}, args...)})
	s := r.start(c)
	r.wait(s)
	if out, want := r.output(s, "stdout"), strings.Join(args, "|")+"|"; out != want {
		r.Errorf("output %q, want %q", out, want)
	}
}

func environment(r *rig) {
	c := r.config(program{argv: []string{"env"}, fake: []string{"env"}})
	c.Env = append(c.Env, "WITH_SPACE=a b  c", "EMPTY=", "EQUALS=a=b", "LINES=1\n2", "UTF8=äöü")
	s := r.start(c)
	r.wait(s)
	if out, want := r.output(s, "stdout"), strings.Join(c.Env, "\n")+"\n"; out != want {
		r.Errorf("environment %q, want %q", out, want)
	}
}

func workdir(r *rig) {
	c := r.config(program{sh: "pwd -P; ls -A", fake: []string{"pwd"}})
	s := r.start(c)
	r.wait(s)
	want, err := filepath.EvalSymlinks(c.Work)
	if err != nil {
		r.Fatal(err)
	}
	if out := r.output(s, "stdout"); out != want+"\n" {
		r.Errorf("work directory %q, want %q and nothing in it", out, want)
	}
}

// cleanProcess: nothing of the agent or init leaks into a command.
func cleanProcess(r *rig) {
	out := r.succeed(program{sh: `
		ls /proc/self/fd | tr '\n' ' '; echo
		grep -E 'Sig(Blk|Ign)' /proc/self/status | tr -s '\t\n' '  '; echo
		ulimit -c
		read -r pid name state parent group session rest < /proc/$$/stat
		[ "$pid" = "$group" ] && [ "$pid" = "$session" ] && echo own session
		cat; echo end of stdin
		ulimit -n`})
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 6 {
		r.Fatalf("output %q", out)
	}
	for i, want := range []string{
		"0 1 2 3 ", // 3 is the directory that ls reads
		"SigBlk: 0000000000000000 SigIgn: 0000000000000000 ",
		"0",
		"own session",
		"end of stdin",
	} {
		if lines[i] != want {
			r.Errorf("line %d is %q, want %q", i+1, lines[i], want)
		}
	}
	if len(lines[5]) < 4 {
		r.Errorf("limit of open files is %s", lines[5])
	}
}
