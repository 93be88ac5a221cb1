package transfer

import (
	"archive/tar"
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/cmd/muster/internal/clitest"
)

// The rules about what lands where are those of docker cp.
func TestCp(t *testing.T) {
	tree := map[string]string{"app/a": "1", "app/sub/b": "2", "app/link": "->a", "one": "x", "two": "y"}
	for _, tt := range []struct {
		args   string // @ is the sandbox or here, whichever has the sources
		before map[string]string
		want   string // what there is at the destination
		code   int
		stderr string
		into   bool // only into the sandbox; TestCpIsSafe has the other way
	}{
		{args: "@/one %/", want: "one=x", before: map[string]string{}},
		{args: "@/one %/new", want: "new=x"},
		{args: "@/one %/d", before: map[string]string{"d/": ""}, want: "d/ d/one=x"},
		{args: "@/one %/there", before: map[string]string{"there": "old"}, want: "there=x"},
		{args: "@/one %/none/", code: 1, stderr: "muster: there is no directory .*none/; .*\n"},
		{args: "@/one %/none/x", code: 1, stderr: "muster: .*none.*\n"},
		{args: "@/one %/f/", before: map[string]string{"f": "old"}, code: 1, want: "f=old", stderr: "muster: .*\n"},
		{args: "@/app %/new", want: "new/ new/a=1 new/link->a new/sub/ new/sub/b=2"},
		{args: "@/app %/new/", want: "new/ new/a=1 new/link->a new/sub/ new/sub/b=2"},
		{args: "@/app %/", want: "app/ app/a=1 app/link->a app/sub/ app/sub/b=2"},
		{args: "@/app/. %/", want: "a=1 link->a sub/ sub/b=2"},
		{args: "@/app/. %/new", want: "new/ new/a=1 new/link->a new/sub/ new/sub/b=2"},
		{args: "@/app %/f", before: map[string]string{"f": "old"}, code: 1, want: "f=old", stderr: "muster: .*f is not a directory, and .*app is one\n"},
		{args: "@/one @/two %/", want: "one=x two=y"},
		{args: "@/one @/two %/new", code: 1, stderr: "muster: .*new is not a directory; several sources need one that is there\n"},
		{args: "@/app/link %/l", want: "l->a", into: true},
		{args: "-L @/app/link %/l", want: "l=1"},
		{args: "@/nope %/", code: 1, stderr: "muster: .*nope.*no such file or directory\n"},
	} {
		for _, into := range []bool{false, true} {
			if tt.into && !into {
				continue
			}
			s := withJob(t, 1)
			here := t.TempDir()
			from, to := s.Inside.Root, here
			at, dst := "web:", here
			if into {
				from, to = here, s.Inside.Root
				at, dst = here, "web:"
			}
			clitest.WriteFiles(t, from, tree)
			clitest.WriteFiles(t, to, tt.before)
			args := strings.Fields("cp " + strings.NewReplacer("@", at, "%", dst).Replace(tt.args))
			r := s.Muster(nil, args...)
			r.Check(t, tt.code, "", tt.stderr)
			if got := clitest.FilesIn(t, to); got != tt.want {
				t.Errorf("%v: there is %q, want %q", args, got, tt.want)
			}
		}
	}
}

func TestCpKeepsModesAndTimes(t *testing.T) {
	s := withJob(t, 1)
	here, at := t.TempDir(), time.Date(2020, 2, 3, 4, 5, 6, 0, time.UTC)
	file := filepath.Join(s.Inside.Root, "tool")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _ = os.Chmod(file, 0o751), os.Chtimes(file, at, at)
	check := func(path string) {
		t.Helper()
		info, err := os.Stat(path)
		if err != nil || info.Mode() != 0o751 || !info.ModTime().Equal(at) {
			t.Errorf("%v %v", info, err)
		}
	}
	s.Muster(nil, "cp", "web:/tool", here).Check(t, 0, "", "")
	check(filepath.Join(here, "tool"))
	s.Muster(nil, "cp", "-a", filepath.Join(here, "tool"), "web:/back").Check(t, 0, "", "")
	check(filepath.Join(s.Inside.Root, "back"))
	if len(s.Inside.Owners) != 1 || s.Inside.Owners[0] != "true" {
		t.Error(s.Inside.Owners)
	}
}

func TestCpStreams(t *testing.T) {
	s := withJob(t, 1)
	clitest.WriteFiles(t, s.Inside.Root, map[string]string{"app/a": "1"})
	r := s.Muster(nil, "cp", "web:/app", "-")
	if r.Code != 0 || r.Stderr != "" {
		t.Fatal(r)
	}
	h, err := tar.NewReader(strings.NewReader(r.Stdout)).Next()
	if err != nil || h.Name != "app/" {
		t.Error(h, err)
	}
	clitest.WriteFiles(t, s.Inside.Root, map[string]string{"to/": ""})
	s.MusterWithInput(strings.NewReader(r.Stdout), nil, "cp", "-", "web:/to").Check(t, 0, "", "")
	if got := clitest.FilesIn(t, filepath.Join(s.Inside.Root, "to")); got != "app/ app/a=1" {
		t.Error(got)
	}
}

func TestCpMistakes(t *testing.T) {
	s := withJob(t, 1)
	for args, want := range map[string]string{
		"cp":                        "what should be copied where",
		"cp web:/a":                 "what should be copied where",
		"cp a b":                    "both a and b are here; write the one in a sandbox as ALLOC:PATH",
		"cp web:/a web:/b":          "both web:/a and web:/b are in sandboxes; copy through a stream",
		"cp web:/a other:/b /tmp":   "in different sandboxes",
		"cp web: /tmp":              "there is no path behind the colon",
		"cp :/a /tmp":               "there is no allocation before the colon",
		"cp - /tmp/x web:/a":        "- is one tar stream",
		"cp ./web:nothing web:/tmp": "no such file or directory",
	} {
		if r := s.Muster(nil, strings.Fields(args)...); r.Code == 0 || !strings.Contains(r.Stderr, want) {
			t.Errorf("%s: exit code %d, %q", args, r.Code, r.Stderr)
		}
	}
}

// What comes from a sandbox reaches nothing outside of the destination, and a
// file that comes in part is not there.
func TestCpIsSafe(t *testing.T) {
	s := withJob(t, 1)
	clitest.WriteFiles(t, s.Inside.Root, map[string]string{"app/out": "->/etc/passwd", "app/up": "->../../x", "app/in": "->a", "app/a": "1"})
	here := t.TempDir()
	s.Muster(nil, "cp", "web:/app", here).Check(t, 1, "", "(muster: web:/app: app/(out|up) is left out: [^\n]*\n){2}muster: the copy is not complete: left out of it: 2\n")
	if got := clitest.FilesIn(t, here); got != "app/ app/a=1 app/in->a" {
		t.Error(got)
	}
	s.Muster(nil, "cp", "web:/app/out", here).Check(t, 1, "", "muster: web:/app/out: .*\nmuster: web:/app/out was not copied; -L copies what it leads to\n")
	// A link alone leads to what is beside the copy.
	s.Muster(nil, "cp", "web:/app/in", here).Check(t, 1, "", "muster: web:/app/in: .*\nmuster: web:/app/in was not copied; -L copies what it leads to\n")
	// An archive that ends in the middle of a file.
	root, err := os.OpenRoot(here)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	whole := clitest.Tar(t, tar.Header{Name: "big", Typeflag: tar.TypeReg, Mode: 0o644, Uname: strings.Repeat("x", 5000)})
	if err := os.WriteFile(filepath.Join(here, "big"), []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := (&untar{root: root}).unpack(bytes.NewReader(whole[:3000])); err == nil {
		t.Error("it was taken for whole")
	}
	if got := clitest.FilesIn(t, here); got != "app/ app/a=1 app/in->a big=old" {
		t.Error(got)
	}
	// Names that lead out, also once they have another name.
	for _, name := range []string{"../evil", "/evil", "a/../../evil"} {
		u := &untar{root: root, rename: func(string) string { return "../evil" }}
		if err := u.unpack(bytes.NewReader(clitest.Tar(t, tar.Header{Name: "x", Typeflag: tar.TypeReg}))); err == nil {
			t.Error("a new name leads out")
		}
		if err := (&untar{root: root}).unpack(bytes.NewReader(clitest.Tar(t, tar.Header{Name: name, Typeflag: tar.TypeReg}))); err == nil {
			t.Errorf("%s was unpacked", name)
		}
	}
}

func TestLs(t *testing.T) {
	s := withJob(t, 1)
	clitest.WriteFiles(t, s.Inside.Root, map[string]string{"app/b": "22", "app/a\x1b[31m": "1", "app/a\nb": "1", "app/sub/c": "3", "app/link": "->b"})
	s.Muster(nil, "ls", "web:/app").Check(t, 0, "a·b\na·[31m\nb\nlink\nsub\n", "")
	s.Muster(nil, "ls", "-R", "web:/app").Check(t, 0, "a·b\na·[31m\nb\nlink\nsub\nsub/c\n", "")
	s.Muster(nil, "ls", "web").Check(t, 0, "app\n", "")
	now := time.Now().Format("2006-01-02")
	r := s.Muster(nil, "ls", "-l", "web:/app")
	for _, want := range []string{"-rw-r----- root root    2 " + now, " b\n", "lrwxrwxrwx root root    1 " + now, " link -> b\n", "drwxr-xr-x root root "} {
		if !strings.Contains(r.Stdout, want) {
			t.Errorf("%q is missing in\n%s", want, r.Stdout)
		}
	}
	s.Muster(nil, "ls", "web:/nope").Check(t, 1, "", "muster: \"/nope\": no such file or directory\n")
	if r := s.Muster(nil, "ls", "--json", "web:/app/sub"); !strings.Contains(r.Stdout, `"path": "/app/sub/c"`) {
		t.Error(r)
	}
}

// An answer about a file names the sandbox and the path, once. What the sandbox's own permissions
// forbid is no question of the token.
func TestFileProblemsNameTheSandbox(t *testing.T) {
	s := withJob(t, 1)
	about := func(status int, code, path, message string) {
		s.Do(func() {
			s.Inside.Refuse = &api.Problem{Status: status, Title: http.StatusText(status), Code: code, Detail: fmt.Sprintf("%q: %s", path, message),
				Errors: []api.ProblemField{{Location: "query.path", Message: message, Value: path}}}
		})
	}
	about(http.StatusNotFound, "not-found", "/nope", "does not exist")
	s.Muster(nil, "ls", "web:/nope").Check(t, cli.ExitFailed, "", "muster: web: \"/nope\": does not exist\n")
	s.Muster(nil, "cp", "web:/nope", t.TempDir()).Check(t, cli.ExitFailed, "", "muster: web: \"/nope\": does not exist\n")
	about(http.StatusForbidden, api.CodePermission, "/sys/x", "is on a read-only file system")
	s.Muster(nil, "ls", "web:/sys/x").Check(t, cli.ExitFailed, "", "muster: web: \"/sys/x\": is on a read-only file system\n")
	// What the server refuses for the token, and what an environment does not allow.
	s.Do(func() {
		s.Inside.Refuse = &api.Problem{Status: http.StatusForbidden, Title: "Forbidden", Code: api.CodeForbidden, Detail: "the secret is for runner r1"}
	})
	s.Muster(nil, "ls", "web").Check(t, cli.ExitAuth, "", "muster: the secret is for runner r1; the token of a server is .*\n")
	s.Do(func() {
		s.Inside.Refuse = &api.Problem{Status: http.StatusForbidden, Title: "Forbidden", Code: "invalid", Detail: "environment e: leave user out"}
	})
	s.Muster(nil, "ls", "web").Check(t, cli.ExitUsage, "", "muster: environment e: leave user out\n")
}
