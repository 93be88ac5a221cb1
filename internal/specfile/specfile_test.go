package specfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/fields"
)

var update = flag.Bool("update", false, "write what is read now into the golden files")

// TestGolden reads each file of testdata/*.txt: archives whose members come in
// pairs, a file and, as <file>.want, what reading it gives: the JSON with
// defaults, or the error. Files named config* are server configurations,
// those named env* environments.
func TestGolden(t *testing.T) {
	paths, _ := filepath.Glob("testdata/*.txt")
	if len(paths) == 0 {
		t.Fatal("no golden files")
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			archive, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			var files []txtar.File
			for i, f := range archive.Files {
				if strings.HasSuffix(f.Name, ".want") {
					continue
				}
				got := golden(f.Name, f.Data)
				files = append(files, f, txtar.File{Name: f.Name + ".want", Data: got})
				if *update {
					continue
				}
				if i+1 == len(archive.Files) || archive.Files[i+1].Name != f.Name+".want" {
					t.Fatalf("%s has no .want behind it; run with -update", f.Name)
				}
				if want := archive.Files[i+1].Data; !bytes.Equal(got, want) {
					t.Errorf("%s\n--- got\n%s--- want\n%s", f.Name, got, want)
				}
			}
			if *update {
				archive.Files = files
				if err := os.WriteFile(path, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func golden(name string, data []byte) []byte {
	var v any
	var err error
	switch {
	case strings.HasPrefix(name, "config"):
		v, err = Config(name, data)
	case strings.HasPrefix(name, "env"):
		v, err = Environment(name, data)
	default:
		v, err = Job(name, data)
	}
	if err != nil {
		return []byte(err.Error() + "\n")
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return []byte(err.Error() + "\n")
	}
	return b.Bytes()
}

// Each field of package api must be of a kind that the decoder reads, on every level.
func TestEveryFieldCanBeRead(t *testing.T) {
	var example func(v reflect.Value) *node
	example = func(v reflect.Value) *node {
		switch v.Addr().Interface().(type) {
		case *api.Size:
			return &node{kind: text, value: "64MiB"}
		case *api.Duration:
			return &node{kind: text, value: "5s"}
		case *muster.Secret:
			return &node{kind: text, value: "x"}
		}
		switch v.Kind() {
		case reflect.Pointer:
			return example(reflect.New(v.Type().Elem()).Elem())
		case reflect.Struct:
			n := &node{kind: mapping}
			for _, f := range fields.Of(v.Type()) {
				n.entries = append(n.entries, entry{&node{kind: text, value: fields.JSONName(f)}, example(v.FieldByIndex(f.Index))})
			}
			return n
		case reflect.Slice:
			return &node{kind: list, items: []*node{example(reflect.New(v.Type().Elem()).Elem())}}
		case reflect.Map:
			return &node{kind: mapping, entries: []entry{{&node{kind: text, value: "K"}, example(reflect.New(v.Type().Elem()).Elem())}}}
		case reflect.String:
			return &node{kind: text, value: "x"}
		case reflect.Bool:
			return &node{kind: truth, value: "true"}
		default:
			return &node{kind: number, value: "7"}
		}
	}
	for _, v := range []any{&api.JobSpec{}, &api.EnvironmentSpec{}, &api.ServerConfig{}} {
		root := example(reflect.ValueOf(v).Elem())
		d := &decoder{budget: 1000, bytes: 1 << 20}
		d.value(root, reflect.ValueOf(v).Elem(), "")
		for _, p := range d.problems {
			t.Errorf("%T: %s %s", v, p.Path, p.Message)
		}
		var set func(v reflect.Value, path string)
		set = func(v reflect.Value, path string) {
			if v.IsZero() {
				t.Errorf("%s was not set", path)
			}
			if v.Kind() == reflect.Struct {
				for i := range v.NumField() {
					set(v.Field(i), path+"."+v.Type().Field(i).Name)
				}
			}
		}
		set(reflect.ValueOf(v).Elem(), fmt.Sprintf("%T", v))
	}
}

func TestYAMLAndJSONReadTheSame(t *testing.T) {
	y := "name: a\ncommand: [sh, -c, \"echo <b>\"]\nenv: {A: '1'}\ncount: 3\ntimeout: 5m\nresources: {cpu: 0.5, memory: 64MiB}\nrestart: {on: [any]}\n"
	fromYAML, err := Job("a.yaml", []byte(y))
	if err != nil {
		t.Fatal(err)
	}
	fromJSON, err := Job("a.json", fromYAML.Canonical())
	if err != nil {
		t.Fatal(err)
	}
	unnamed, err := Job("-", []byte("\ufeff\n\t"+string(fromYAML.Canonical())))
	if err != nil {
		t.Fatal(err)
	}
	if !fromYAML.Equal(fromJSON) || !fromYAML.Equal(unnamed) {
		t.Errorf("YAML %s\nJSON %s\nunnamed %s", fromYAML.Canonical(), fromJSON.Canonical(), unnamed.Canonical())
	}
}

func TestSizeLimit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "job.yaml")
	if err := os.WriteFile(path, bytes.Repeat([]byte("# comment\n"), MaxBytes/10+1), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := JobAt(path, nil)
	if want := path + ": is larger than 8MiB; give large data as inputs of a job"; err == nil || err.Error() != want {
		t.Error(err)
	}
	if _, err := JobAt("-", strings.NewReader("command: [true]")); err != nil {
		t.Error(err)
	}
	if _, err := ConfigAt("/no/such/file.yaml"); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// Files of a megabyte of each kind are read, or refused, in time and memory linear in their size.
func TestLargeFiles(t *testing.T) {
	many := func(n int, line func(i int) string) string {
		var b strings.Builder
		for i := 0; b.Len() < n; i++ {
			b.WriteString(line(i))
		}
		return b.String()
	}
	const mb = 1000_000
	files := map[string]string{
		"args":        "command:\n" + many(mb*9/10, func(i int) string { return fmt.Sprintf("- %0100d\n", i) }),
		"env":         "command: [a]\nenv:\n" + many(mb*3/4, func(i int) string { return fmt.Sprintf("  KEY_%d: value %d\n", i, i) }),
		"flow env":    "command: [a]\nenv: {" + many(mb*3/4, func(i int) string { return fmt.Sprintf("KEY_%d: value %d, ", i, i) }) + "}",
		"block text":  "command:\n- sh\n- -c\n- |\n" + many(100_000, func(i int) string { return "  echo hello world\n" }),
		"comments":    many(mb, func(i int) string { return "# nothing\n" }) + "command: [a]\n",
		"JSON env":    `{"command": ["a"], "env": {` + many(mb*3/4, func(i int) string { return fmt.Sprintf("\"KEY_%d\": \"value %d\",\n", i, i) }) + `"A": "b"}}`,
		"!unknown":    many(mb, func(i int) string { return fmt.Sprintf("field_%d: x\n", i) }),
		"!unclosed":   "command: [" + many(mb, func(i int) string { return "a, " }),
		"!open lists": many(100_000, func(i int) string { return "a: [\n" }),
		"!nested":     strings.Repeat("[", mb),
		"!nested {":   strings.Repeat("{a: ", mb/4),
		"!dashes":     strings.Repeat("- ", mb/2),
		"!tabs":       strings.Repeat("\t", mb),
		"!quotes":     many(mb, func(i int) string { return "a: \"\n" }),
		"!percent":    strings.Repeat("%", mb),
		"!documents":  many(mb, func(i int) string { return "---\n" }),
		"!numbers":    "count: " + strings.Repeat("9", mb),
		"!over 1MiB":  "command:\n" + many(2*mb, func(i int) string { return fmt.Sprintf("- %0100d\n", i) }),
		"!JSON open":  strings.Repeat(`{"a":`, mb/5),
		"!aliases":    "command: [a]\nconstraints:\n- &c {attribute: a, values: [1,2,3]}\n" + many(mb, func(i int) string { return "- *c\n" }),
	}
	for name, file := range files {
		start := time.Now()
		_, err := Job("job.yaml", []byte(file))
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("%s: %d bytes took %v", name, len(file), took)
		}
		if refused := strings.HasPrefix(name, "!"); refused != (err != nil) {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && len(err.Error()) > 10_000 {
			t.Errorf("%s: error of %d bytes", name, len(err.Error()))
		}
	}
}

// A few aliases of aliases stand for more values than the memory holds.
func TestAliasBombIsBounded(t *testing.T) {
	var b strings.Builder
	b.WriteString("command: [a]\nconstraints:\n- &a0 [x,x,x,x,x,x,x,x,x,x]\n")
	for i := 1; i < 30; i++ {
		fmt.Fprintf(&b, "- &a%d [%s*a%d]\n", i, strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 9), i-1)
	}
	if _, err := Job("job.yaml", []byte(b.String())); err == nil {
		t.Error("was read")
	}
	bomb := "command: [a]\nconstraints:\n- &c {attribute: a, op: in, values: &v [" + strings.Repeat("x,", 900) + "]}\n" + strings.Repeat("- *c\n", 900)
	_, err := Job("job.yaml", []byte(bomb))
	if err == nil || !strings.Contains(err.Error(), "the file's aliases repeat more than 20000 values") {
		t.Error(err)
	}
	// One long text, named often: it is shared while the file is read, and no longer when the spec is sent.
	long := "command:\n- &c " + strings.Repeat("x", 60_000) + "\n" + strings.Repeat("- *c\n", 15_000)
	if _, err = Job("job.yaml", []byte(long)); err == nil || !strings.Contains(err.Error(), "the file's aliases repeat more than") {
		t.Error(err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add("job.yaml", []byte("name: a\ncommand: [true]\nenv:\n  A: b\n"))
	f.Add("job.json", []byte(`{"command":["a"],"inputs":[{"path":"x","content":"y"}]}`))
	f.Add("job.yaml", []byte("a: &a [*a]\n"))
	f.Add("job.yaml", []byte("command: [&x a, *x]\n<<: *x\n? [a]\n: b\n"))
	f.Add("job.yaml", []byte("a: |\n\tb\n--- \n%x\n"))
	f.Add("job.yaml", []byte("resources:\n  memroy: 1\n\ttab\n"))
	f.Fuzz(func(t *testing.T, name string, data []byte) {
		spec, err := Job(name, data)
		if (spec == nil) == (err == nil) {
			t.Fatal("neither a spec nor an error, or both")
		}
		if err == nil {
			if p := spec.ValidateFile(); p != nil {
				t.Fatalf("read, but wrong: %v", p)
			}
		} else {
			checkError(t, err, name, data)
		}
		if _, err := Config(name, data); err != nil {
			checkError(t, err, name, data)
		}
	})
}

// checkError holds what is promised of each error: a place in the file, and a bounded text.
func checkError(t *testing.T, err error, name string, data []byte) {
	var e *Error
	if !errors.As(err, &e) || len(e.Problems) == 0 {
		t.Fatalf("%T %v", err, err)
	}
	lines := len((&source{data: data, yaml: true}).starts())
	for _, p := range e.Problems {
		if p.Line < 0 || p.Line > lines+1 || p.Column < 0 || p.Message == "" {
			t.Fatalf("%d lines: %+v", lines, p)
		}
	}
	if len(e.Error()) > 100_000+25*len(name) {
		t.Fatalf("error of %d bytes for a file of %d", len(e.Error()), len(data))
	}
}

func BenchmarkJobOfOneMegabyte(b *testing.B) {
	var s strings.Builder
	s.WriteString("command: [a]\nenv:\n")
	for i := 0; s.Len() < 750_000; i++ {
		fmt.Fprintf(&s, "  KEY_%d: value %d\n", i, i)
	}
	data := []byte(s.String())
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Job("job.yaml", data); err != nil {
			b.Fatal(err)
		}
	}
}
