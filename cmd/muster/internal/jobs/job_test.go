package jobs

import (
	"archive/tar"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/musterhq/muster/cmd/muster/internal/clitest"
)

func TestLogs(t *testing.T) {
	s := withMixedJob(t)
	for _, tt := range []struct {
		args   string
		code   int
		stdout string
		stderr string
	}{
		{"web", 0, "[0] out0\n[1] out1\n[2] out2\n", "[0] err0\n"},
		{"default/web --stdout", 0, "[0] out0\n[1] out1\n[2] out2\n", ""},
		{"web --stderr", 0, "", "[0] err0\n"},
		{"web --stderr --stdout --index 0", 0, "out0\n", "err0\n"},
		{"web --index 0 --attempt 1", 0, "old\n", ""},
		{"web --index 1", 0, "out1", ""},
		{"web --index 1 --tail 3B", 0, "ut1", ""},
		{"web --tail 1", 0, "[0] out0\n[1] out1\n[2] out2\n", "[0] err0\n"},
		{"web --index 2 --attempt 4", 1, "", "muster: job web: member 2 has no attempt 4\n"},
		{"web --index 3", 1, "", "muster: job web has no member 3: it has 3, counted from 0\n"},
		{"web/1", 0, "out1", ""},
		{"default/web/1", 0, "out1", ""},
		{"web/3", 1, "", "muster: job web has no member 3: it has 3, counted from 0\n"},
		{"web/x", 1, "", "muster: job x: not found; `muster job list` shows the jobs\n"},
		{"nope/1", 1, "", "muster: job 1: not found; `muster job list` shows the jobs\n"},
		{"web --index -1", 2, "", "muster: --index is -1; members are counted from 0\n"},
		{"web --attempt 1", 2, "", "muster: --attempt needs --index: attempts are counted for each member\n"},
		{"nope", 1, "", "muster: job nope: not found; `muster job list` shows the jobs\n"},
		{"a/b/c", 2, "", "muster: job name \"b/c\" has '/' at position 2; a name has lower-case letters, digits, and inside it dots and dashes\n"},
		{"a/web --namespace b", 2, "", "muster: \"a/web\" is in another namespace than --namespace b\n"},
	} {
		s.Muster(nil, append([]string{"job", "logs"}, strings.Fields(tt.args)...)...).Check(t, tt.code, tt.stdout, regexp.QuoteMeta(tt.stderr))
	}
}

func TestLogsFollow(t *testing.T) {
	s := withMixedJob(t)
	go func() {
		s.Print(2, 1, "stdout", "more\n")
		s.End(2, 1, 0)
		s.Start(1, 2)
		s.Print(1, 2, "stdout", "again\n")
		s.End(1, 2, 0)
		s.EndJob("succeeded", "")
	}()
	r := s.Muster(nil, "job", "logs", "-f", "web")
	for _, want := range []string{"[0] old\n", "[0] out0\n", "[1] out1\n", "[1] again\n", "[2] out2\n", "[2] more\n"} {
		if strings.Count(r.Stdout, want) != 1 {
			t.Errorf("%q: %d times in %q", want, strings.Count(r.Stdout, want), r.Stdout)
		}
	}
	r.Check(t, 0, r.Stdout, "\\[0\\] err0\n")
	s.Muster(nil, "job", "logs", "-f", "--index", "1", "web").Check(t, 0, "out1again\n", "")
}

func TestLogsOfWhatHasNotStarted(t *testing.T) {
	s := withMixedJob(t)
	s.Do(func() { s.Allocs = nil })
	s.Muster(nil, "job", "logs", "--index", "2", "web").Check(t, 0, "", "muster: member 2 has not started yet\n")
	s.Muster(nil, "job", "logs", "web").Check(t, 0, "", "")
}

func TestJobListShowStop(t *testing.T) {
	s := withMixedJob(t)
	s.Muster(nil, "job", "list").Check(t, 0, "JOB  STATUS   DONE  RUN  FAIL  AGE  COMMAND  REASON\nweb  running  0/3   1    0     3m   -\n", "")
	r := s.Muster(nil, "job", "show", "web")
	want := `Job        web
Status     running
Version    1
Priority   50
Command    sh -c 'echo '.''hi'.'''
Submitted  [-0-9]+ [:0-9]+ \(3m ago\)
Members    3: 0 waiting, 0 placed, 1 running, 0 succeeded, 0 failed, 0 stopped

MEMBER  STATUS     ATTEMPT  NODE  EXIT  RAN +REASON
0       succeeded  2        n1    0     [0-9ms]+ *
1       failed     1        n1    2     [0-9ms]+ *exit code 2
2       running    1        n1    -     [0-9ms]+ *
`
	want = strings.ReplaceAll(want, " *\n", "\n")
	if ok, err := regexp.MatchString("^"+want+"$", regexp.MustCompile(`(?m) +$`).ReplaceAllString(r.Stdout, "")); !ok || err != nil || r.Code != 0 {
		t.Errorf("got\n%s\nwant\n%s (%v)", r.Stdout, want, err)
	}
	if r := s.Muster(nil, "job", "show", "web", "--members", "2"); !strings.HasSuffix(r.Stdout, "… and 1 more; --members 0 shows all\n") {
		t.Error(r.Stdout)
	}
	if r := s.Muster(nil, "job", "show", "--json", "web"); !strings.Contains(r.Stdout, `"newest": {`) || r.Code != 0 {
		t.Error(r)
	}
	s.Muster(nil, "job", "stop", "web", "--reason", "enough").Check(t, 0, "job web is stopping\n", "")
	s.EndJob("stopped", "enough")
	s.Muster(nil, "job", "stop", "web").Check(t, 0, "job web has ended: stopped\n", "")
	if fmt.Sprintf("%q", s.Stopped) != `["enough" ""]` {
		t.Errorf("%q", s.Stopped)
	}
	s.Do(func() { s.Job = nil })
	s.Muster(nil, "job", "list").Check(t, 0, "", "muster: no jobs; `muster run -- COMMAND` makes one\n")
	s.Muster(nil, "job", "list", "--json").Check(t, 0, fmt.Sprintf("{\n  \"jobs\": [],\n  \"index\": %d\n}\n", s.Index), "")
}

// Of a job with more members than are shown, what failed and what runs is not hidden behind others.
func TestFailedAndRunningMembersAreShownFirst(t *testing.T) {
	s := withMixedJob(t)
	rows := func(args ...string) string {
		t.Helper()
		r := s.Muster(nil, append([]string{"job", "show", "web"}, args...)...)
		_, table, _ := strings.Cut(r.Stdout, "REASON\n")
		var out []string
		for line := range strings.Lines(table) {
			if f := strings.Fields(line); f[0] != "…" {
				out = append(out, f[0]+" "+f[1])
			}
		}
		if r.Code != 0 {
			t.Error(r)
		}
		return strings.Join(out, ", ") + r.Stderr
	}
	for _, test := range []struct{ args, want string }{
		{"", "0 succeeded, 1 failed, 2 running"}, {"--members 3", "0 succeeded, 1 failed, 2 running"}, {"--members 0", "0 succeeded, 1 failed, 2 running"},
		{"--members 2", "1 failed, 2 running"}, {"--members 1", "1 failed"},
		{"--status running", "2 running"}, {"--status failed", "1 failed"}, {"--status succeeded --members 0", "0 succeeded"},
		{"--status placed", "muster: no members with status placed\n"}, {"--status waiting", "muster: no members with status waiting\n"},
	} {
		if got := rows(strings.Fields(test.args)...); got != test.want {
			t.Errorf("%s: %q, want %q", test.args, got, test.want)
		}
	}
	s.Muster(nil, "job", "show", "web", "--status", "lost").Check(t, 2, "", "muster: --status is \"lost\"; it is one of failed, running, .*\n")
	s.Muster(nil, "job", "show", "web", "--members", "-1").Check(t, 2, "", "muster: --members is -1; 0 shows all\n")
}

func TestSubmitAndValidate(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(t.TempDir()) // files are relative to the job file, not to here
	file := filepath.Join(dir, "job.yaml")
	write := func(name, content string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	write("job.yaml", "name: web\ncommand: [cat, in]\ninputs:\n- {path: in, file: data}\n")
	write("data", "some data")
	write("bad.yaml", "name: web\ncommand: [a]\nmemroy: 1\n")
	write("big.yaml", "name: web\ncommand: [a]\nresources: {cpu: 5}\n")
	s := newServer(t)
	s.Muster(nil, "job", "validate", file).Check(t, 0, regexp.QuoteMeta(file)[:0]+file+" is well-formed; a member fits small\n", "")
	s.Muster(nil, "job", "validate", file, "--local").Check(t, 0, file+" is well-formed\n", "")
	s.Muster(nil, "job", "validate", filepath.Join(dir, "big.yaml")).Check(t, 1, "", "muster: .*/big.yaml is well-formed, but fits nowhere: cpu: 5 wanted, the largest offering has 4\n")
	s.Muster(nil, "job", "validate", filepath.Join(dir, "bad.yaml")).Check(t, 2, "", "muster: .*/bad.yaml:3:1: unknown field \"memroy\"; did you mean \"memory\", in resources\\?\n   3 \\| memroy: 1\n     \\| \\^\\^\\^\\^\\^\\^\n")
	if len(s.Uploads) != 0 {
		t.Error("validate uploads")
	}
	s.Muster(nil, "job", "submit", file, "-n", "team").Check(t, 0, "team/web\n", "")
	in := s.Submitted[0].Spec.Inputs[0]
	if in.Digest != "sha256:1307990e6ba5ca145eb35e99182a9bec46531bc54ddf656a602c780fa0240dee" || in.File != "" || in.Mode != "0640" || string(s.Uploads[in.Digest]) != "some data" {
		t.Errorf("%+v", in)
	}
	s.Muster(nil, "job", "submit", file, "-n", "team", "--if-version", "0", "--replace").Check(t, 0, "team/web\n", "muster: job team/web is there with the same content \\(version 1\\); nothing was done\n")
	if sub := s.Submitted[1]; sub.IfVersion == nil || *sub.IfVersion != 0 || !sub.Replace {
		t.Errorf("%+v", sub)
	}
	if err := os.Remove(filepath.Join(dir, "data")); err != nil {
		t.Fatal(err)
	}
	s.Muster(nil, "job", "validate", file).Check(t, 2, "", "muster: .*/job.yaml: inputs\\[0\\]: stat .*/data: no such file or directory\n")
}

func TestFetch(t *testing.T) {
	s := withMixedJob(t)
	s.End(2, 1, 0)
	file := func(name, content string) tar.Header {
		return tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o640, Uname: content, ModTime: time.Unix(1_600_000_000, 0)}
	}
	s.Do(func() {
		s.Tars["u-0-2"] = [][]byte{
			clitest.Tar(t, tar.Header{Typeflag: tar.TypeDir, Name: "out/", Mode: 0o555}, file("out/a", "A0"), tar.Header{Typeflag: tar.TypeSymlink, Name: "out/b", Linkname: "a"}),
			clitest.Tar(t, file("log.txt", "log of 0")),
		}
		s.Tars["u-2-1"] = [][]byte{clitest.Tar(t, file("out/a", "A2"))}
	})
	dest := t.TempDir()
	s.Muster(nil, "job", "fetch", "web", "--dest", dest).Check(t, 0, filepath.Join(dest, "0/out")+"\n"+filepath.Join(dest, "0/log.txt")+"\n"+filepath.Join(dest, "2/out")+"\n", "muster: job web: no outputs of 1 of 3 members, which did not succeed\n")
	for name, want := range map[string]string{"0/out/a": "A0", "0/out/b": "A0", "0/log.txt": "log of 0", "2/out/a": "A2"} {
		b, err := os.ReadFile(filepath.Join(dest, name))
		if string(b) != want {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	if info, err := os.Stat(filepath.Join(dest, "0/log.txt")); err != nil || info.Mode() != 0o640 || info.ModTime().Unix() != 1_600_000_000 {
		t.Errorf("%v, %v", info, err)
	}
	// Once more, into what is there.
	s.Muster(nil, "job", "fetch", "web", "--dest", dest, "--index", "0", "--json").Check(t, 0,
		fmt.Sprintf("[\n  {\n    \"member\": 0,\n    \"path\": \"out\",\n    \"folder\": %q,\n    \"files\": 2\n  },\n  {\n    \"member\": 0,\n    \"path\": \"log.txt\",\n    \"folder\": %q,\n    \"files\": 1\n  }\n]\n", dest, dest), "")
	s.Muster(nil, "job", "fetch", "web", "--dest", dest, "--index", "1").Check(t, 1, "", "muster: job web has no outputs to fetch: .*\n")
	s.Do(func() { s.Job.Spec.Outputs = nil })
	s.Muster(nil, "job", "fetch", "web", "--dest", dest, "--index", "1").Check(t, 1, "", "muster: job web declares no outputs; .*\n")
}

// On a terminal a fetch shows how far it is; --json shows nothing but the answer.
func TestFetchShowsProgress(t *testing.T) {
	s := withMixedJob(t)
	content := tar.Header{Typeflag: tar.TypeReg, Name: "out", Mode: 0o640, Uname: strings.Repeat("x", 1<<20), ModTime: time.Unix(1_600_000_000, 0)}
	s.Do(func() { s.Tars["u-0-2"] = [][]byte{clitest.Tar(t, content)} })
	seen := make(chan struct{})
	see := sync.OnceFunc(func() { close(seen) })
	defer see()
	s.HalfSent = func() { <-seen }
	c := s.Console(t, "job", "fetch", "web", "--index", "0", "--to", t.TempDir())
	clitest.Until(t, "of 1.0MiB  50%", c.Seen.String)
	if line := regexp.MustCompile(`out  [0-9.]+KiB of 1.0MiB  50%  [0-9.]+[KM]iB/s`); !line.MatchString(c.Seen.String()) {
		t.Errorf("%q is shown", c.Seen.String())
	}
	see()
	if code := c.End(t); code != 0 {
		t.Errorf("exit code %d: %q", code, c.Seen.String())
	}
	s.HalfSent = nil
	c = s.Console(t, "job", "fetch", "web", "--index", "0", "--dest", t.TempDir(), "--json")
	if code := c.End(t); code != 0 || strings.Contains(c.Seen.String(), "MiB") {
		t.Errorf("exit code %d: %q", code, c.Seen.String())
	}
}

func TestAuth(t *testing.T) {
	s := newServer(t)
	s.Muster(nil, "--token", "wrong", "job", "list").Check(t, 4, "", "muster: the token is missing or wrong; the token of a server is in its data directory: give --data-dir, or MUSTER_TOKEN\n")
}
