package jobs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/cmd/muster/internal/clitest"
)

func TestRunOne(t *testing.T) {
	s := newServer(t)
	s.OnSubmit = func(s *clitest.Server) {
		s.Start(0, 1)
		s.Print(0, 1, "stdout", "hello \x00\xff")
		s.Print(0, 1, "stderr", "oops\n")
		s.Print(0, 1, "stdout", "world") // no newline at the end, and none is made
		s.End(0, 1, 0)
		s.EndJob("succeeded", "")
	}
	s.Muster(nil, "run", "--name", "web", "--cpu", "0.5", "--memory", "64MiB", "--env", "A=b=c", "--on", "1,3-5", "--constraint", "os=linux", "--constraint", "zone in a,b", "--constraint", "gpu", "--constraint", "x!=y",
		"--timeout", "10m", "--output", "out", "--", "echo", "--name", "x").Check(t, 0, "hello \x00\xffworld", "muster: job web\noops\n")
	want := `{"name":"web","namespace":"default","type":"batch","count":1,"priority":50,"command":["echo","--name","x"],"env":{"A":"b=c"},` +
		`"resources":{"cpu":0.5,"memory":"64MiB"},"restart":{"attempts":3,"on":["1","3-5"],"backoff":"1s","backoff_max":"5m","give_up":"1h"},"timeout":"10m","kill_grace":"10s",` +
		`"constraints":[{"attribute":"os","op":"=","value":"linux"},{"attribute":"zone","op":"in","values":["a","b"]},{"attribute":"gpu","op":"is-set"},{"attribute":"x","op":"!=","value":"y"}],"outputs":[{"path":"out"}],"output_limit":"256MiB"}`
	if got := string(s.Submitted[0].Spec.Canonical()); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestRunExitCodes(t *testing.T) {
	signal := "SIGSEGV"
	for _, tt := range []struct {
		code   int
		change func(al *api.Alloc)
		want   int
		stderr string
	}{
		{3, func(*api.Alloc) {}, 3, "muster: job run-1\nmuster: attempt 1 failed: exit code 3\n"},
		{255, func(*api.Alloc) {}, 255, "muster: job run-1\nmuster: attempt 1 failed: exit code 255\n"},
		{1, func(al *api.Alloc) {
			al.ExitCode, al.Signal, al.Failure = nil, signal, &api.Failure{Reason: "signal", Message: "ended by SIGSEGV"}
		}, 139, "muster: job run-1\nmuster: attempt 1 failed: ended by SIGSEGV\n"},
		{1, func(al *api.Alloc) {
			al.ExitCode, al.Failure = nil, &api.Failure{Reason: "timeout", Message: "ran into its time limit of 1s"}
		}, 124, "muster: job run-1\nmuster: attempt 1 failed: ran into its time limit of 1s\n"},
		{1, func(al *api.Alloc) {
			al.ExitCode, al.Failure = nil, &api.Failure{Reason: "command-not-found", Message: "nope: no such program"}
		}, 127, "muster: job run-1\nmuster: attempt 1 failed: nope: no such program\nmuster: no image was given, .*`muster run --image IMAGE -- x`\n"},
		{1, func(al *api.Alloc) {
			al.ExitCode, al.Failure = nil, &api.Failure{Reason: "not-executable", Message: "\x1b[31mred"}
		}, 126, "muster: job run-1\nmuster: attempt 1 failed: ·\\[31mred\n"},
		{1, func(al *api.Alloc) {
			al.ExitCode, al.Signal, al.Failure = nil, "SIGKILL", &api.Failure{Reason: "out-of-memory", Message: "over 64MiB"}
		}, 137, "muster: job run-1\nmuster: attempt 1 failed: over 64MiB\n"},
		{1, func(al *api.Alloc) {
			al.ExitCode, al.Outcome, al.Failure = nil, "lost", &api.Failure{Reason: "node-gone", Message: "node n1 is gone"}
		}, 1, "muster: job run-1\nmuster: attempt 1 lost: node n1 is gone\n"},
	} {
		s := newServer(t)
		s.OnSubmit = func(s *clitest.Server) {
			s.Start(0, 1)
			s.End(0, 1, tt.code, tt.change)
			s.EndJob("failed", "member 0 failed")
		}
		s.Muster(nil, "run", "--", "x").Check(t, tt.want, "", tt.stderr)
	}
}

func TestRunThatFitsNowhere(t *testing.T) {
	s := newServer(t)
	s.OnSubmit = func(s *clitest.Server) { s.EndJob("failed", "cpu: 64 wanted, the largest offering has 4") }
	s.Muster(nil, "run", "--cpu", "64", "--", "x").Check(t, 1, "", "muster: job run-1\nmuster: job run-1: failed: cpu: 64 wanted, the largest offering has 4\n")
}

func TestRunQuiet(t *testing.T) {
	s := newServer(t)
	s.OnSubmit = func(s *clitest.Server) {
		s.Start(0, 1)
		s.Print(0, 1, "stderr", "e\n")
		s.End(0, 1, 7)
		s.EndJob("failed", "")
	}
	s.Muster(nil, "run", "-q", "--", "x").Check(t, 7, "", "e\n")
}

func TestRunManyPrefixesWholeLines(t *testing.T) {
	s := newServer(t)
	s.OnSubmit = func(s *clitest.Server) {
		s.Start(0, 1)
		s.Start(1, 1)
		s.Start(2, 1)
		for i := range 100 { // in pieces that are no lines
			for m := range 3 {
				s.Print(m, 1, "stdout", fmt.Sprintf("%d of", i))
				s.Print(m, 1, "stdout", fmt.Sprintf(" %d\n", m))
			}
		}
		s.Print(1, 1, "stdout", "no end")
		s.End(0, 1, 0)
		s.End(1, 1, 0)
		s.End(2, 1, 4)
		s.EndJob("failed", "1 member failed")
	}
	r := s.Muster(nil, "run", "--count", "3", "--", "x")
	next := map[string]int{}
	for line := range strings.Lines(r.Stdout) {
		if line == "[1] no end\n" {
			continue
		}
		member := line[1:2]
		if want := fmt.Sprintf("[%s] %d of %s\n", member, next[member], member); line != want {
			t.Fatalf("line %q, want %q", line, want)
		}
		next[member]++
	}
	if fmt.Sprint(next) != "map[0:100 1:100 2:100]" || !strings.Contains(r.Stdout, "[1] no end\n") {
		t.Error(next)
	}
	r.Stdout = ""
	r.Check(t, 1, "", "muster: job run-1\nmuster: member 2, attempt 1 failed: exit code 4\nmuster: job run-1: failed: 2 of 3 members succeeded, 1 failed, 0 stopped: 1 member failed\n")
}

// A member's second attempt is printed behind its first, and only the last one's end counts.
func TestRunSecondAttempt(t *testing.T) {
	s := newServer(t)
	s.OnSubmit = func(s *clitest.Server) {
		s.Start(0, 1)
		s.Print(0, 1, "stdout", "first\n")
		s.End(0, 1, 5)
		s.Start(0, 2)
		s.Print(0, 2, "stdout", "second\n")
		s.End(0, 2, 0)
		s.EndJob("succeeded", "")
	}
	s.Muster(nil, "run", "--attempts", "2", "--on", "any", "--", "x").Check(t, 0, "first\nsecond\n", "muster: job run-1\nmuster: attempt 1 failed: exit code 5\n")
}

// Who restricts what is retried learns why a failure was not.
func TestRunSaysWhyItIsNotRetried(t *testing.T) {
	for code, want := range map[int]string{
		3: "muster: attempt 1 failed: exit code 3\nmuster: it is not tried again: exit code 3 is not in --on \\(restart.on\\), which is 5,7-9\n",
		8: "muster: attempt 1 failed: exit code 8\n",
	} {
		s := newServer(t)
		s.OnSubmit = func(s *clitest.Server) {
			s.Start(0, 1)
			s.End(0, 1, code)
			s.EndJob("failed", "")
		}
		s.Muster(nil, "run", "--on", "5,7-9", "--", "x").Check(t, code, "", "muster: job run-1\n"+want)
	}
}

// What an attempt printed comes before the line that says how it ended.
func TestRunPrintsBeforeItTells(t *testing.T) {
	for range 20 { // which one was first was a matter of chance
		s := newServer(t)
		s.OnSubmit = func(s *clitest.Server) {
			for attempt := 1; attempt <= 2; attempt++ {
				s.Start(0, attempt)
				s.Print(0, attempt, "stderr", fmt.Sprintf("try %d\n", attempt))
				s.End(0, attempt, 5)
			}
			s.EndJob("failed", "")
		}
		s.Muster(nil, "run", "--attempts", "2", "--on", "any", "--", "x").Check(t, 5, "",
			"muster: job run-1\ntry 1\nmuster: attempt 1 failed: exit code 5\ntry 2\nmuster: attempt 2 failed: exit code 5\n")
	}
}

// The server goes away again and again, in the middle of everything: nothing is
// lost, nothing is printed twice, and the exit code is right.
func TestRunGoesOnOverRestarts(t *testing.T) {
	s := newServer(t)
	s.OnSubmit = func(s *clitest.Server) {
		s.Start(0, 1)
		for i := range 50 {
			s.Print(0, 1, "stdout", fmt.Sprintf("line %d\n", i))
			if i%10 == 5 {
				s.Kill()
				time.Sleep(20 * time.Millisecond) // how long it is away
				s.Back()
			}
		}
		s.Kill()
		s.End(0, 1, 9)
		s.EndJob("failed", "")
		s.Back()
	}
	var want strings.Builder
	for i := range 50 {
		fmt.Fprintf(&want, "line %d\n", i)
	}
	s.Muster(nil, "run", "--", "x").Check(t, 9, want.String(), "muster: job run-1\nmuster: attempt 1 failed: exit code 9\n")
}

// Events are no longer kept when the server is back: what there is is listed instead.
func TestRunWhenEventsAreTooOld(t *testing.T) {
	s := newServer(t)
	s.OnSubmit = func(s *clitest.Server) {
		s.Start(0, 1)
		s.Print(0, 1, "stdout", "before\n")
		s.Kill()
		s.Print(0, 1, "stdout", "meanwhile\n")
		s.End(0, 1, 0)
		s.Start(1, 1)
		s.Print(1, 1, "stdout", "other\n")
		s.End(1, 1, 0)
		s.Do(func() { s.Events, s.Forgotten = nil, s.Index })
		s.Back()
		time.Sleep(50 * time.Millisecond) // so that some of it is listed while the job lives
		s.EndJob("succeeded", "")
	}
	r := s.Muster(nil, "run", "--count", "2", "--", "x")
	for _, line := range []string{"[0] before\n[0] meanwhile\n", "[1] other\n"} {
		if !strings.Contains(r.Stdout, line) {
			t.Errorf("%q is missing in %q", line, r.Stdout)
		}
	}
	r.Check(t, 0, r.Stdout, "muster: job run-1\nmuster: job run-1: all 2 members succeeded in [0-9.ms]+\n")
}

func TestRunServerThatStaysAway(t *testing.T) {
	s := newServer(t)
	s.OnSubmit = func(s *clitest.Server) {
		s.Start(0, 1)
		s.Kill()
	}
	s.Muster(nil, "run", "--patience", "300ms", "--", "x").Check(t, 3, "",
		"muster: job run-1\n.*muster: no server answers at 127.0.0.1:[0-9]+: EOF; the job keeps running: `muster job show run-1`\n")
}

func TestRunThatIsInterrupted(t *testing.T) {
	s := newServer(t)
	signals := make(chan os.Signal, 4)
	s.OnSubmit = func(s *clitest.Server) {
		s.Start(0, 1)
		s.Print(0, 1, "stdout", "a\n")
		signals <- os.Interrupt
	}
	s.OnStop = func(s *clitest.Server) {
		s.Print(0, 1, "stdout", "bye\n")
		s.End(0, 1, 0, func(al *api.Alloc) { al.ExitCode, al.Signal, al.Outcome = nil, "SIGTERM", "stopped" })
		s.EndJob("stopped", "interrupted")
	}
	s.Muster(signals, "run", "--", "x").Check(t, 130, "a\nbye\n", "muster: job run-1\nmuster: stopping job run-1; press Ctrl-C again to exit without waiting\n.*")
	if fmt.Sprint(s.Stopped) != "[interrupted]" {
		t.Errorf("stopped: %q", s.Stopped)
	}
}

func TestRunThatIsInterruptedTwice(t *testing.T) {
	s := newServer(t)
	signals := make(chan os.Signal, 4)
	s.OnSubmit = func(s *clitest.Server) {
		s.Start(0, 1)
		signals <- os.Interrupt
	}
	s.OnStop = func(*clitest.Server) { signals <- os.Interrupt }
	s.Muster(signals, "run", "--", "x").Check(t, 130, "", "muster: job run-1\nmuster: stopping job run-1; press Ctrl-C again to exit without waiting\nmuster: left; job run-1 may still be stopping: `muster job show run-1`\n")
}

func TestRunDetached(t *testing.T) {
	s := newServer(t)
	s.Muster(nil, "run", "-d", "--name", "web", "--namespace", "team", "--", "x").Check(t, 0, "team/web\n", "")
	s = newServer(t)
	s.Muster(nil, "run", "--json", "-d", "--", "x").Check(t, 0, "{\n  \"namespace\": \"default\",\n  \"name\": \"run-1\",\n  \"uid\": \"u\",\n  \"version\": 1,\n  \"index\": 11\n}\n", "")
}

// A job that is there with the same content is followed from where it is, though it has ended.
func TestRunUnchanged(t *testing.T) {
	s := newServer(t)
	s.OnSubmit = func(s *clitest.Server) {
		s.Start(0, 1)
		s.Print(0, 1, "stdout", "once\n")
		s.End(0, 1, 0)
		s.EndJob("succeeded", "")
	}
	s.Muster(nil, "run", "--name", "web", "--", "x").Check(t, 0, "once\n", "muster: job web\n")
	s.OnSubmit = nil
	s.Muster(nil, "run", "--name", "web", "--", "x").Check(t, 0, "once\n", "muster: job web is there with the same content \\(version 1\\); following that\n")
}

func TestRunReplacedMeanwhile(t *testing.T) {
	s := newServer(t)
	s.OnSubmit = func(s *clitest.Server) {
		s.Start(0, 1)
		s.Do(func() {
			s.Job.Version = 2
			s.EventLocked(api.Event{Type: "job.live", JobNow: s.Job})
		})
	}
	s.Muster(nil, "run", "--", "x").Check(t, 1, "", "muster: job run-1\nmuster: job run-1 was submitted again: version 2 took the place of version 1; the job keeps running: `muster job show run-1`\n")
}

func TestRunTellsWhatIsMissingOfOutput(t *testing.T) {
	s := newServer(t)
	s.OnSubmit = func(s *clitest.Server) {
		s.Start(0, 1)
		s.Print(0, 1, "stdout", "half")
		s.End(0, 1, 0, func(al *api.Alloc) { al.Output.State, al.Output.Why = "incomplete", "its node was lost" })
		s.EndJob("succeeded", "")
	}
	s.Muster(nil, "run", "--", "x").Check(t, 0, "half", "muster: job run-1\nmuster: member 0: its stdout is incomplete: its node was lost\nmuster: member 0: its stderr is incomplete: its node was lost\n|"+
		"muster: job run-1\nmuster: member 0: its stderr is incomplete: its node was lost\nmuster: member 0: its stdout is incomplete: its node was lost\n")
}

func TestRunThousandsOfMembers(t *testing.T) {
	const n = 1500
	s := newServer(t)
	s.OnSubmit = func(s *clitest.Server) {
		for i := range n {
			s.Start(i, 1)
			if i%100 == 0 {
				s.Print(i, 1, "stdout", "x\n")
			}
			s.End(i, 1, 0)
		}
		s.EndJob("succeeded", "")
	}
	r := s.Muster(nil, "run", "--count", fmt.Sprint(n), "--", "true")
	if r.Code != 0 || strings.Count(r.Stdout, "\n") != n/100 {
		t.Errorf("exit code %d, %d lines, %s", r.Code, strings.Count(r.Stdout, "\n"), r.Stderr)
	}
}

// What stdin has becomes an input, and the stdin of the command.
func TestRunStdin(t *testing.T) {
	s := newServer(t)
	s.OnSubmit = func(s *clitest.Server) { s.EndJob("succeeded", "") }
	s.MusterWithInput(strings.NewReader("b\na\n"), nil, "run", "-q", "-i", "--", "sort", "-r").Check(t, 0, "", "")
	spec := s.Submitted[0].Spec
	if len(spec.Inputs) != 1 || string(s.Uploads[spec.Inputs[0].Digest]) != "b\na\n" ||
		!slices.Equal(spec.Command, []string{"sh", "-c", `exec "$@" < .muster-stdin`, "sh", "sort", "-r"}) {
		t.Errorf("%+v", spec)
	}
	for args, want := range map[string]string{
		"-i --image x":         "-i needs a command",
		"-i --workdir /x sort": "leave --workdir out",
	} {
		if r := s.Muster(nil, append([]string{"run"}, strings.Fields(args)...)...); r.Code != 2 || !strings.Contains(r.Stderr, want) {
			t.Errorf("%s: exit code %d, %q", args, r.Code, r.Stderr)
		}
	}
}

// A closed terminal, or Ctrl-\, leaves the job as it is.
func TestRunIsLeft(t *testing.T) {
	for sig, want := range map[os.Signal]struct {
		code int
		says string
	}{
		unix.SIGHUP:  {129, "muster: job run-1\n"},
		unix.SIGQUIT: {0, "muster: job run-1\nmuster: left; job run-1 keeps running: `muster job logs -f run-1`\n"},
	} {
		s := newServer(t)
		signals := make(chan os.Signal, 4)
		s.OnSubmit = func(s *clitest.Server) {
			s.Start(0, 1)
			signals <- sig
		}
		s.OnStop = func(*clitest.Server) { t.Errorf("%v stops the job", sig) }
		s.Muster(signals, "run", "--", "x").Check(t, want.code, "", want.says)
	}
}

func TestInputsAreUploadedOnce(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("tool", []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	s := newServer(t)
	s.OnSubmit = func(s *clitest.Server) { s.EndJob("succeeded", "") }
	s.Muster(nil, "run", "-q", "--input", "tool:bin/tool", "--input", "tool", "--", "x").Check(t, 0, "", "")
	in := s.Submitted[0].Spec.Inputs
	const sum = "sha256:a8076d3d28d21e02012b20eaf7dbf75409a6277134439025f282e368e3305abf"
	if len(in) != 2 || in[0] != (api.InputSpec{Path: "bin/tool", Digest: sum, Mode: "0755"}) || in[1] != (api.InputSpec{Path: "tool", Digest: sum, Mode: "0755"}) || len(s.Uploads) != 1 {
		t.Errorf("%+v, %d uploads", in, len(s.Uploads))
	}
	s.Muster(nil, "run", "--input", "nope:x", "--", "x").Check(t, 2, "", "muster: inputs\\[0\\]: stat .*/nope: no such file or directory\n")
	s.Muster(nil, "run", "--input", "tool:.", "--", "x").Check(t, 2, "", "muster: inputs\\[0\\]: .*/tool is a file, and its path is the work directory itself; give it a name there, as tool\n")
	s.Muster(nil, "run", "--input", "https://x.org/a:b", "--", "x").Check(t, 2, "", "muster: --input https://x.org/a:b: an address needs a digest beside it; write it into a job file \\(url and digest\\)\n")
}

// A directory becomes the files in it. Without a path its name is that in the work directory; . is what is in it.
func TestInputDirectory(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for name, text := range map[string]string{"a": "1", "sub/b": "2", "sub/deep/c": "1"} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink("a", "link"), os.Mkdir("empty", 0o755)); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"--input .":             "a link sub/b sub/deep/c",
		"--input ./":            "a link sub/b sub/deep/c",
		"--input sub":           "sub/b sub/deep/c",
		"--input sub/:x/y":      "x/y/b x/y/deep/c",
		"--input sub:.":         "b deep/c",
		"--input " + dir + ":.": "a link sub/b sub/deep/c",
		"--input empty":         "",
	} {
		s := newServer(t)
		s.OnSubmit = func(s *clitest.Server) { s.EndJob("succeeded", "") }
		s.Muster(nil, append([]string{"run", "-q"}, append(strings.Fields(args), "--", "x")...)...).Check(t, 0, "", "")
		var got []string
		for _, in := range s.Submitted[0].Spec.Inputs {
			if in.Mode != "0644" || s.Uploads[in.Digest] == nil {
				t.Errorf("%s: %+v was not uploaded", args, in)
			}
			got = append(got, in.Path)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %s, want %s", args, got, want)
		}
	}
	s := newServer(t)
	if err := errors.Join(unix.Mkfifo("sub/pipe", 0o644), os.WriteFile("job.yaml", []byte("command: [x]\ninputs:\n- {path: ., file: sub}\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	s.Muster(nil, "run", "-f", "job.yaml").Check(t, 2, "", "muster: inputs\\[0\\]: sub/pipe is no plain file, and not a link to one; pack what it is in with tar\n")
	if err := errors.Join(os.Remove("sub/pipe"), os.Symlink("deep", "sub/dir")); err != nil {
		t.Fatal(err)
	}
	s.Muster(nil, "run", "-f", "job.yaml").Check(t, 2, "", "muster: inputs\\[0\\]: sub/dir is no plain file, .*\n")
	for i := range 1001 {
		if err := os.WriteFile(fmt.Sprintf("empty/%d", i), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s.Muster(nil, "run", "--input", "empty", "--", "x").Check(t, 2, "", "muster: inputs\\[0\\]: .*/empty has 1001 files, and a job takes 1000 inputs in all; .*\n")
}

// A command that failed over a file of this directory gets a hint, unless the job had the file.
func TestHintOfLocalFile(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("train.py", []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	const hint = "muster: train.py is a file here, and the job did not have it: .* `--input train.py`, or this directory with `--input .`\n"
	for args, want := range map[string]string{
		"-- python3 train.py":                    hint,
		"-- ./train.py":                          hint,
		"--input . -- python3 train.py":          "",
		"--input train.py -- python3 train.py":   "",
		"--workdir /srv -- python3 train.py":     "",
		"-- python3 other.py":                    "",
		"--count 2 -- python3 train.py":          "muster: job run-1: .*\n" + hint,
		"--input train.py:x -- python3 train.py": hint,
	} {
		s := newServer(t)
		s.OnSubmit = func(s *clitest.Server) {
			s.Start(0, 1)
			s.End(0, 1, 2)
			s.EndJob("failed", "")
		}
		r := s.Muster(nil, append([]string{"run"}, strings.Fields(args)...)...)
		if ok, _ := regexp.MatchString("^(?s)muster: job run-1\n.*failed.*?\n"+want+"$", r.Stderr); !ok || r.Code == 0 {
			t.Errorf("%s: exit code %d, %q", args, r.Code, r.Stderr)
		}
	}
}

func TestRunUsage(t *testing.T) {
	s := newServer(t)
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{}, "there is no command; write it behind the flags, as in `muster run -- echo hello`"},
		{[]string{"--count", "0", "--", "x"}, "--count is 0; a job has 1 to 1000000 members"},
		{[]string{"--cpu", "0", "--", "x"}, "--cpu is 0; give at least 0.001"},
		{[]string{"--memory", "64", "--", "x"}, "the job is wrong\n  resources.memory: is 64 bytes; at least 1MiB is needed, with its unit, as 64MiB"},
		{[]string{"--memory", "0", "--", "x"}, "--memory: is 0; leave it out for the default"},
		{[]string{"--timeout", "10 min", "--", "x"}, "--timeout: \"10 min\" is not a duration; write a number with a unit (ms, s, m, h, d), as 90s or 1h30m"},
		{[]string{"--on", "never", "--", "x"}, "the job is wrong\n  restart.on[0]: \"never\" is none of an exit code from 1 to 255, a range as 2-5, any, timeout, out-of-memory, signal"},
		{[]string{"--constraint", "a < b", "--", "x"}, "--constraint \"a < b\": write NAME=VALUE, NAME!=VALUE, NAME in A,B, or NAME"},
		{[]string{"--env", "=x", "--", "x"}, "--env =x: there is no name before ="},
		{[]string{"--name", "A", "--", "x"}, "the job is wrong\n  name: has 'A' at position 1; a name has lower-case letters, digits, and inside it dots and dashes"},
	} {
		s.Muster(nil, append([]string{"run"}, tt.args...)...).Check(t, 2, "", regexp.QuoteMeta("muster: "+tt.want+"\n"))
	}
}

// What is repeated because of something outside is said to be so, once.
func TestRunSaysHowLongItTries(t *testing.T) {
	s := newServer(t)
	outside := func(al *api.Alloc) {
		al.ExitCode, al.Failure = nil, &api.Failure{Class: "outside", Reason: "image", Message: "no such host"}
	}
	s.OnSubmit = func(s *clitest.Server) {
		for n := range 2 {
			s.Start(0, n+1)
			s.End(0, n+1, 1, outside)
		}
		s.Start(0, 3)
		s.End(0, 3, 0)
		s.EndJob("succeeded", "")
	}
	s.Muster(nil, "run", "x").Check(t, 0, "", "muster: job run-1\nmuster: attempt 1 failed: no such host\n"+
		"muster: this is not counted as an attempt of the command; it is tried again for up to 1h, and Ctrl-C stops the job\nmuster: attempt 2 failed: no such host\n")
}
