package poseidon

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	initwire "github.com/musterhq/muster/internal/wire/init"
)

func TestFilesAreChanged(t *testing.T) {
	b, path, work, _ := inRunner(t)
	write := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(work, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(work, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	read := func(name string) string {
		raw, err := os.ReadFile(filepath.Join(work, name))
		if err != nil {
			return "none"
		}
		return string(raw)
	}
	change := func(del []string, copies map[string]string) reply {
		t.Helper()
		m := map[string]any{"delete": del}
		var list []map[string]string
		for name, content := range copies {
			list = append(list, map[string]string{"path": name, "content": base64.StdEncoding.EncodeToString([]byte(content))})
		}
		m["copy"] = list
		raw, _ := json.Marshal(m)
		return b.do("PATCH", path+"/files", string(raw))
	}
	binary := "\x00\xff\n'\"$`\\"
	write("old", "old")
	write("tree/deep/file", "x")
	// Deleted first: what was a file becomes a directory.
	b.want(change([]string{"old", "tree", "never/was"}, map[string]string{"old/new": binary, "made/of/many/parts": "x", work + "/absolute": "y", "dir/": "ignored", "dir/below": "z", "empty": ""}), 204, "")
	for name, want := range map[string]string{"old/new": binary, "made/of/many/parts": "x", "absolute": "y", "dir/below": "z", "empty": "", "tree/deep/file": "none"} {
		if got := read(name); got != want {
			t.Errorf("%s is %q", name, got)
		}
	}
	for name, want := range map[string]os.FileMode{"old/new": 0o744, "made": os.ModeDir | os.ModeSticky | 0o777, "made/of/many": os.ModeDir | os.ModeSticky | 0o777, "dir": os.ModeDir | os.ModeSticky | 0o777} {
		if info, err := os.Lstat(filepath.Join(work, name)); err != nil || info.Mode() != want {
			t.Errorf("%s: %v %v, want %v", name, info.Mode(), err, want)
		}
	}
	// The working directory is emptied, and stays.
	write(".hidden", "x")
	b.want(change([]string{"./*"}, map[string]string{"a": "1"}), 204, "")
	if entries, err := os.ReadDir(work); err != nil || len(entries) != 1 || read("a") != "1" {
		t.Errorf("%v %v", entries, err)
	}
	write("d/x", "x")
	// Only ./* is a pattern: in other paths * is a name, as in Poseidon, which quotes them.
	write("d/*", "x")
	write("*", "x")
	b.want(change([]string{work + "/d/*", "none/*", "*"}, nil), 204, "")
	if read("d/*") != "none" || read("*") != "none" || read("d/x") != "x" || read("a") != "1" {
		t.Errorf("%q %q %q %q", read("d/*"), read("*"), read("d/x"), read("a"))
	}
	// Links are deleted, not what they lead to.
	write("kept/file", "x")
	if err := os.Symlink("kept", filepath.Join(work, "link")); err != nil {
		t.Fatal(err)
	}
	b.want(change([]string{"link"}, nil), 204, "")
	if read("kept/file") != "x" {
		t.Error("a link was followed")
	}
	// Paths are cleaned, as Poseidon does: what .. cancels need not exist, and a slash at the end follows no link.
	if err := os.Symlink("kept", filepath.Join(work, "link")); err != nil {
		t.Fatal(err)
	}
	write("gone", "x")
	b.want(change([]string{"link/", "none/../gone", "kept//sub/./.."}, map[string]string{"none/../b": "2", ".//c/../d2/x": "3"}), 204, "")
	for name, want := range map[string]string{"link": "none", "gone": "none", "kept/file": "none", "b": "2", "d2/x": "3", "none": "none", "c": "none"} {
		if got := read(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
		if _, err := os.Lstat(filepath.Join(work, name)); want == "none" && err == nil {
			t.Errorf("%s is there", name)
		}
	}
	// A directory takes the place of a file, and of a link, which is not followed.
	write("file", "x")
	write("other/kept", "x")
	if err := os.Symlink("other", filepath.Join(work, "linked")); err != nil {
		t.Fatal(err)
	}
	b.want(change(nil, map[string]string{"file/": "", "linked/": ""}), 204, "")
	for _, name := range []string{"file", "linked"} {
		if info, err := os.Lstat(filepath.Join(work, name)); err != nil || info.Mode() != os.ModeDir|os.ModeSticky|0o777 {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
	if read("other/kept") != "x" {
		t.Error("a link was followed")
	}
	// Nothing to do is done.
	b.want(b.do("PATCH", path+"/files", `{}`), 204, "")
	b.want(b.do("PATCH", path+"/files", `{"delete": null, "copy": null}`), 204, "")

	// One of ten cannot be: the nine are written and the one is named.
	ten := map[string]string{}
	for i := range 9 {
		ten[fmt.Sprintf("ten/%d", i)] = "x"
	}
	ten["/proc/version/no"] = "x"
	if m := b.want(change(nil, ten), 500, codeUnknown); !strings.Contains(m.Message, "/proc/version/no") || strings.Contains(m.Message, "ten/") {
		t.Errorf("told was %q", m.Message)
	}
	if done, _ := filepath.Glob(filepath.Join(work, "ten/*")); len(done) != 9 {
		t.Errorf("written are %q", done)
	}
	// What cannot be deleted is no error, as Poseidon ignores the status of rm: clients send ./* also where the work
	// directory is / or a volume, and give the runner up after an error.
	write("x", "x")
	b.want(change([]string{"/proc/version", "x", ""}, map[string]string{"y": "1"}), 204, "")
	if read("x") != "none" || read("y") != "1" {
		t.Errorf("%q %q", read("x"), read("y"))
	}
	for _, body := range []string{"", "{", `{"copy": [{"path": "x", "content": "not base64!"}]}`, `{"delete": "x"}`, `{"delete": [7]}`} {
		b.want(b.do("PATCH", path+"/files", body), 400, "")
	}
	b.want(b.do("PATCH", path+"/files", `{"files": [], "copy": [{"path": "x", "content": "", "mode": "0644"}]}`), 204, "") // what is not known is ignored, as Poseidon does
}

func TestLargeFiles(t *testing.T) {
	b, path, work, _ := inRunner(t)
	content := strings.Repeat("0123456789abcdef", 1<<20) // 16 MiB
	body := `{"copy": [{"path": "large", "content": "` + base64.StdEncoding.EncodeToString([]byte(content)) + `"}]}`
	b.want(b.do("PATCH", path+"/files", body), 204, "")
	if raw, err := os.ReadFile(filepath.Join(work, "large")); err != nil || string(raw) != content {
		t.Errorf("%d bytes, %v", len(raw), err)
	}
	if a := b.do("GET", path+"/files/raw?path=large", ""); a.StatusCode != 200 || a.body != content || a.Header.Get("Content-Length") != fmt.Sprint(len(content)) {
		t.Errorf("%d, %d bytes, %v", a.StatusCode, len(a.body), a.Header)
	}
	b.want(b.do("PATCH", path+"/files", `{"copy": [{"path": "x", "content": "`+strings.Repeat("A", maxFiles)+`"}]}`), 413, "")
	if n := len(b.p.bodies.large); n != 0 {
		t.Errorf("%d large bodies are still counted", n)
	}
}

func TestFilesAreListed(t *testing.T) {
	b, path, work, _ := inRunner(t)
	for _, f := range []string{"file", "dir/below", "dir/deeper/still", "with space", "dir/ü\n\""} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(work, f)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(work, f), []byte("12345"), 0o744); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("dir/below", filepath.Join(work, "link")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(work, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	list := func(query string) (names []string, byName map[string]file) {
		t.Helper()
		all := decoded[map[string][]file](b, b.do("GET", path+"/files"+query, ""))["files"]
		byName = map[string]file{}
		for _, f := range all {
			names, byName[f.Name] = append(names, f.Name), f
		}
		slices.Sort(names)
		return names, byName
	}
	everything := []string{"./dir", "./dir/below", "./dir/deeper", "./dir/deeper/still", "./dir/ü\n\"", "./file", "./link", "./pipe", "./with space"}
	for query, want := range map[string][]string{
		"": everything, "?path=.": everything, "?path=./&recursive=true&privilegedExecution=false": everything, "?recursive=false": {"dir", "file", "link", "pipe", "with space"},
		"?path=dir/../dir/deeper": {"dir/../dir/deeper/still"}, "?path=dir//deeper/": {"dir//deeper/still"},
		"?path=dir": {"dir/below", "dir/deeper", "dir/deeper/still", "dir/ü\n\""}, "?path=dir/&recursive=false": {"below", "deeper", "ü\n\""}, "?path=dir/below": {"dir/below"},
		"?path=" + work + "/dir/deeper": {work + "/dir/deeper/still"}, "?path=" + work + "/dir&recursive=false&privilegedExecution=true": {"below", "deeper", "ü\n\""},
	} {
		if got, _ := list(query); fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
			t.Errorf("%s:\ngot  %q\nwant %q", query, got, want)
		}
	}
	_, byName := list("")
	info, err := os.Stat(filepath.Join(work, "file"))
	if err != nil {
		t.Fatal(err)
	}
	f := byName["./file"]
	if f.EntryType != "-" || f.Size != 5 || f.Permissions != "rwxr--r--" || f.ModificationTime != info.ModTime().Unix() || f.Owner == "" || f.Group == "" || f.LinkTarget != "" {
		t.Errorf("%+v", f)
	}
	if l := byName["./link"]; l.EntryType != "l" || l.LinkTarget != "dir/below" {
		t.Errorf("%+v", l)
	}
	if byName["./dir"].EntryType != "d" || byName["./pipe"].EntryType != "p" {
		t.Errorf("%+v", byName)
	}
	if err := os.Mkdir(filepath.Join(work, "none"), 0o755); err != nil {
		t.Fatal(err)
	}
	if a := b.do("GET", path+"/files?path=none", ""); a.StatusCode != 200 || a.body != "{\"files\":[]}\n" {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	for _, query := range []string{"?path=missing", "?path=file/x", "?path=%00", "?path=" + strings.Repeat("x/", 3000)} {
		b.want(b.do("GET", path+"/files"+query, ""), 424, "")
	}
	// Booleans are read as Poseidon reads them: what is none is the default.
	for query, want := range map[string]int{"?recursive=perhaps": len(everything), "?recursive=F": 5, "?recursive=0&privilegedExecution=1": 5, "?privilegedExecution=maybe": len(everything)} {
		if got, _ := list(query); len(got) != want+1 { // and the directory made above
			t.Errorf("%s: %q", query, got)
		}
	}
}

// P10: names are those of `ls -l --literal`, which leaves out dot files and lists a link that it is given, not what the link leads to.
func TestListingIsThatOfLs(t *testing.T) {
	b, path, work, _ := inRunner(t)
	for _, f := range []string{"d/x", "d/.hidden", ".cache/tool/x", ".profile"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(work, f)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(work, f), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{"dirlink": "d", "dangling": "nowhere"} {
		if err := os.Symlink(target, filepath.Join(work, name)); err != nil {
			t.Fatal(err)
		}
	}
	for query, want := range map[string]string{
		"./&recursive=true":        "./d ./d/x ./dangling->nowhere ./dirlink->d",
		"./&recursive=false":       "d dangling->nowhere dirlink->d",
		".cache":                   ".cache/tool .cache/tool/x",
		".profile":                 ".profile",
		"d/../d/":                  "d/../d/x",
		"d/../d//&recursive=false": "x",
		"./d/x&recursive=false":    "./d/x",
		"dirlink":                  "dirlink->d",
		"dirlink&recursive=false":  "dirlink->d",
		"dirlink/":                 "dirlink/x",
		"dangling":                 "dangling->nowhere",
		"d/../dangling":            "d/../dangling->nowhere",
		"/proc/mounts":             "/proc/mounts->self/mounts",
	} {
		var got []string
		for _, f := range decoded[map[string][]file](b, b.do("GET", path+"/files?path="+query, ""))["files"] {
			name := f.Name
			if (f.EntryType == "l") != (f.LinkTarget != "") {
				t.Errorf("%s: %+v", query, f)
			}
			if f.LinkTarget != "" {
				name += "->" + f.LinkTarget
			}
			got = append(got, name)
		}
		slices.Sort(got)
		if strings.Join(got, " ") != want {
			t.Errorf("%s:\ngot  %q\nwant %q", query, got, want)
		}
	}
	for _, name := range []string{"dangling/", "/proc/self/exe", "/proc/self/environ"} {
		b.want(b.do("GET", path+"/files?path="+name, ""), 424, "")
	}
}

func TestFilesAreFetched(t *testing.T) {
	b, path, work, _ := inRunner(t)
	if err := os.WriteFile(filepath.Join(work, "a \"b\".bin"), []byte("\x00\xff\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(work, "empty"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(work, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	a := b.do("GET", path+"/files/raw?path=a+%22b%22.bin", "")
	if a.StatusCode != 200 || a.body != "\x00\xff\r\n" || a.Header.Get("Content-Length") != "4" || a.Header.Get("Content-Type") != "application/octet-stream" ||
		a.Header.Get("Content-Disposition") != `attachment; filename="a \"b\".bin"` {
		t.Errorf("%d %q %v", a.StatusCode, a.body, a.Header)
	}
	if a := b.do("GET", path+"/files/raw?path="+work+"/empty&privilegedExecution=true", ""); a.StatusCode != 200 || a.body != "" {
		t.Errorf("%d %q %v", a.StatusCode, a.body, a.Header)
	}
	if a := b.do("GET", path+"/files/raw?path=/proc/version", ""); a.StatusCode != 200 || !strings.HasPrefix(a.body, "Linux") {
		t.Errorf("%d %q %v", a.StatusCode, a.body, a.Header)
	}
	for _, query := range []string{"?path=missing", "?path=.", "", "?path=pipe", "?path=empty/x", "?path=%00"} {
		b.want(b.do("GET", path+"/files/raw"+query, ""), 424, "")
	}
	b.want(b.do("GET", path+"/files/raw?path=empty&privilegedExecution=no", ""), 200, "")
}

func TestPermissions(t *testing.T) {
	for mode, want := range map[uint32]string{
		0o744: "rwxr--r--", 0: "---------", 0o777: "rwxrwxrwx", 0o1777: "rwxrwxrwt", 0o1776: "rwxrwxrwT", 0o4755: "rwsr-xr-x", 0o2750: "rwxr-s---", 0o6000: "--S--S---",
	} {
		if got := permissions(mode); got != want {
			t.Errorf("%o: %s, want %s", mode, got, want)
		}
	}
}

// Whatever init says of an entry, the list is JSON.
func TestListingIsJSON(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		entries := rapid.SliceOfN(rapid.Custom(func(r *rapid.T) initwire.FileEntry {
			return initwire.FileEntry{
				Path: string(rapid.SliceOf(rapid.Byte()).Draw(r, "path")), Target: string(rapid.SliceOf(rapid.Byte()).Draw(r, "target")), Type: rapid.Byte().Draw(r, "type"),
				Size: rapid.Int64().Draw(r, "size"), ModTime: rapid.Int64().Draw(r, "time"), Mode: rapid.Uint32().Draw(r, "mode"), User: rapid.String().Draw(r, "user"),
			}
		}), 0, 5).Draw(r, "entries")
		w := &kept{discard: discard{header: map[string][]string{}}}
		l := &listing{w: w, top: rapid.SampledFrom([]string{"./", "/", "", "a/b", "..", "//"}).Draw(r, "top"), recursive: rapid.Bool().Draw(r, "recursive")}
		for i := range entries {
			if err := l.add(&entries[i]); err != nil {
				r.Fatal(err)
			}
		}
		l.end()
		var out map[string][]file
		if err := json.Unmarshal(w.all, &out); err != nil || len(out["files"]) != len(entries) {
			r.Fatalf("%v in %q", err, w.all)
		}
	})
}

type kept struct {
	discard
	all []byte
}

func (k *kept) Write(b []byte) (int, error) { k.all = append(k.all, b...); return len(b), nil }

// However the bytes of a stream come, all of them come, and no letter is cut in two.
func TestTextKeepsLettersWhole(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		all := rapid.OneOf(rapid.SliceOf(rapid.Byte()), rapid.Map(rapid.String(), func(s string) []byte { return []byte(s) })).Draw(r, "all")
		valid := strings.ToValidUTF8(string(all), "") == string(all)
		var t text
		var got []byte
		for left := all; len(left) > 0; {
			n := rapid.IntRange(1, len(left)).Draw(r, "n")
			out := t.next(left[:n])
			if valid && strings.ToValidUTF8(string(out), "") != string(out) {
				r.Fatalf("%q is cut", out)
			}
			got, left = append(got, out...), left[n:]
		}
		if got = append(got, t.rest()...); string(got) != string(all) {
			r.Fatalf("%q became %q", all, got)
		}
	})
}

// A volume that is to be deleted is emptied and stays, and that is no error.
func TestVolumeIsEmptied(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	b, path, work, _ := inRunner(t)
	volume := filepath.Join(work, "volume")
	if err := os.Mkdir(volume, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount(t.TempDir(), volume, "", syscall.MS_BIND, ""); err != nil {
		t.Skipf("mount: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(volume, syscall.MNT_DETACH) })
	for _, name := range []string{volume, "volume/", "./volume"} {
		if err := os.MkdirAll(filepath.Join(volume, "dir/deep"), 0o755); err != nil {
			t.Fatal(err)
		}
		b.want(b.do("PATCH", path+"/files", `{"delete": ["`+name+`"], "copy": [{"path": "volume/new", "content": "eA=="}]}`), 204, "")
		entries, err := os.ReadDir(volume)
		if err != nil || len(entries) != 1 || entries[0].Name() != "new" {
			t.Errorf("%s: %v, %v", name, entries, err)
		}
	}
}
