package httpapi

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/musterhq/muster/api"
)

// In one request: deleted first, then written, in directories that were missing; what fails is named, and the others are done.
func TestFilesInOneRequest(t *testing.T) {
	in := newInside(t)
	if err := os.WriteFile(filepath.Join(in.work, "a"), []byte("a file, and to be a directory"), 0o600); err != nil {
		t.Fatal(err)
	}
	body := `{"delete": ["a", "never/was"], "write": [{"path": "a/b/c", "content": "text", "mode": "0640"}, {"path": "a/raw", "content_base64": "AP8K"}, {"path": "a/d/"}, {"path": "` + in.work + `/absolute", "content": "x"}]}`
	if a := in.do("PATCH", in.path+"/files", body); a.StatusCode != 204 {
		t.Fatalf("%d %s", a.StatusCode, a.body)
	}
	for path, want := range map[string]string{"a/b/c": "text", "a/raw": "\x00\xff\n", "absolute": "x"} {
		if b, err := os.ReadFile(filepath.Join(in.work, path)); err != nil || string(b) != want {
			t.Errorf("%s: %q %v", path, b, err)
		}
	}
	if info, err := os.Stat(filepath.Join(in.work, "a/b/c")); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("%v %v", info, err)
	}
	if info, err := os.Stat(filepath.Join(in.work, "a/d")); err != nil || !info.IsDir() {
		t.Errorf("%v %v", info, err)
	}

	// One of ten cannot be.
	var ten []string
	for i := range 10 {
		path := fmt.Sprintf("ten/%d", i)
		if i == 4 {
			path = "/proc/version/no"
		}
		ten = append(ten, fmt.Sprintf(`{"path": %q, "content": "%d"}`, path, i))
	}
	p := in.problem(in.do("PATCH", in.path+"/files", `{"write": [`+strings.Join(ten, ",")+`]}`), 409, api.CodeNotDirectory)
	if len(p.Errors) != 1 || p.Errors[0].Location != "body.write[4]" || p.Errors[0].Value != "/proc/version/no" {
		t.Errorf("%+v", p)
	}
	if done, _ := filepath.Glob(filepath.Join(in.work, "ten/*")); len(done) != 9 {
		t.Errorf("written are %q", done)
	}
}

func TestFileChangeProblems(t *testing.T) {
	in := newInside(t)
	for body, where := range map[string]string{
		`{"delete": [""]}`: "body.delete[0]",
		`{"write": [{"path": "ok", "content": "x"}, {"path": ""}]}`:            "body.write[1].path",
		`{"write": [{"path": "a", "mode": "9"}]}`:                              "body.write[0].mode",
		`{"write": [{"path": "a", "content": "x", "content_base64": "eA=="}]}`: "body.write[0]",
		`{"write": [{"path": "a/", "content": "x"}]}`:                          "body.write[0]",
		`{"delete": [` + strings.Repeat(`"a",`, api.FileMaxChange) + `"a"]}`:   "body",
	} {
		p := in.problem(in.do("PATCH", in.path+"/files", body), 422, "invalid")
		if len(p.Errors) == 0 || p.Errors[0].Location != where {
			t.Errorf("%.80s: %+v", body, p)
		}
	}
	if entries, _ := os.ReadDir(in.work); len(entries) != 0 {
		t.Errorf("a request that is wrong was carried out: %v", entries)
	}
	in.problem(in.do("PATCH", in.path+"/files", `{"writ": []}`), 422, "invalid")
}
