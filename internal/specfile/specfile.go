package specfile

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/config"
)

// MaxBytes is the largest file that is read.
const MaxBytes = 8 << 20

// Job reads a job file. Name is what errors call it. Defaults are filled in;
// inputs may still name local files (api.InputSpec.File), for the CLI to upload.
func Job(name string, data []byte) (*api.JobSpec, error) {
	return checked(name, data, func(spec *api.JobSpec) []api.ProblemField {
		spec.Defaults()
		return spec.ValidateFile()
	})
}

// Config reads a server's configuration. Defaults are filled in.
func Config(name string, data []byte) (*api.ServerConfig, error) {
	return checked(name, data, func(c *api.ServerConfig) []api.ProblemField {
		config.Defaults(c)
		return config.Validate(c)
	})
}

// Environment reads an environment's file, as Job does a job's.
func Environment(name string, data []byte) (*api.EnvironmentSpec, error) {
	return checked(name, data, func(spec *api.EnvironmentSpec) []api.ProblemField {
		spec.Defaults()
		return spec.ValidateFile()
	})
}

// JobAt reads the job file at a path; "-" is stdin.
func JobAt(path string, stdin io.Reader) (*api.JobSpec, error) { return at(path, stdin, Job) }

// ConfigAt reads the server's configuration at a path.
func ConfigAt(path string) (*api.ServerConfig, error) { return at(path, nil, Config) }

// ClusterConfigAt reads the cluster's part of a server's configuration at a path; "-" is stdin. What is
// each server's own may be in the file, and may be missing: the servers have it.
func ClusterConfigAt(path string, stdin io.Reader) (*api.ServerConfig, error) {
	return at(path, stdin, func(name string, data []byte) (*api.ServerConfig, error) {
		return checked(name, data, func(c *api.ServerConfig) []api.ProblemField {
			config.Defaults(c)
			return slices.DeleteFunc(config.Validate(c), func(p api.ProblemField) bool { return config.IsOwn(p.Location) })
		})
	})
}

// YAML is JSON as people write it in files. The order of fields stays.
func YAML(data []byte) ([]byte, error) {
	var doc yaml.Node
	// JSON is YAML, in flow style.
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, err
	}
	blockStyle(&doc)
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(&doc); err != nil {
		return nil, err
	}
	return b.Bytes(), enc.Close()
}

func blockStyle(n *yaml.Node) {
	if n.Kind == yaml.MappingNode || n.Kind == yaml.SequenceNode {
		n.Style = 0
	}
	// Text is quoted only where it would be something else without.
	if n.Kind == yaml.ScalarNode && n.Tag == "!!str" {
		n.Style = 0
	}
	for _, inner := range n.Content {
		blockStyle(inner)
	}
}

// EnvironmentAt reads the environment's file at a path; "-" is stdin.
func EnvironmentAt(path string, stdin io.Reader) (*api.EnvironmentSpec, error) {
	return at(path, stdin, Environment)
}

// checked reads data into a new T, which check fills in and checks.
func checked[T any](name string, data []byte, check func(*T) []api.ProblemField) (*T, error) {
	v := new(T)
	if err := read(name, data, v, func() []api.ProblemField { return check(v) }); err != nil {
		return nil, err
	}
	return v, nil
}

// at reads the file at a path.
func at[T any](path string, stdin io.Reader, read func(name string, data []byte) (*T, error)) (*T, error) {
	name, data, err := load(path, stdin)
	if err != nil {
		return nil, err
	}
	return read(name, data)
}

// load reads a file of bounded size, and tells what to call it.
func load(path string, stdin io.Reader) (string, []byte, error) {
	name, r := path, stdin
	if path == "-" {
		name = "stdin"
		if stdin == nil {
			return name, nil, errors.New("-: there is no stdin to read here; name a file")
		}
	} else {
		f, err := os.Open(path)
		if err != nil {
			return name, nil, err
		}
		defer func() { _ = f.Close() }()
		r = f
	}
	// One byte more than allowed, to tell a full file from one that is too large.
	data, err := io.ReadAll(io.LimitReader(r, MaxBytes+1))
	if err != nil {
		return name, nil, fmt.Errorf("%s: %w", name, err)
	}
	return name, data, nil
}

// read decodes data into v, which it fills and checks with check.
func read(name string, data []byte, v any, check func() []api.ProblemField) error {
	src := &source{name: name, data: data}
	if len(data) > MaxBytes {
		return &Error{File: name, Problems: []Problem{{Message: fmt.Sprintf("is larger than %s; give large data as inputs of a job", muster.Bytes(MaxBytes))}}}
	}
	if at := invalidUTF8(data); at >= 0 {
		line, column := src.position(at)
		return src.fail(Problem{Line: line, Column: column, Message: "not UTF-8 text; give binary data in a file of its own"})
	}
	root, problem := parse(src)
	if problem != nil {
		return src.fail(*problem)
	}
	d := &decoder{budget: root.count + aliasBudget, bytes: len(data) + aliasBytes}
	d.value(root, reflect.ValueOf(v).Elem(), "")
	problems := d.problems
	for _, p := range check() {
		// A field that could not be read has another value by now, so that more than itself may look wrong.
		if at, left := root.locate(p); !d.explains(at, left) {
			problems = append(problems, at)
		}
	}
	slices.SortStableFunc(problems, func(a, b Problem) int { return cmp.Compare(a.Line, b.Line) })
	if len(problems) > 0 {
		return src.fail(problems...)
	}
	return nil
}

func invalidUTF8(data []byte) int {
	if utf8.Valid(data) {
		return -1
	}
	for i := 0; i < len(data); {
		r, n := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return -1
}

// isJSONName reports whether a file calls itself JSON.
func isJSONName(name string) bool { return filepath.Ext(name) == ".json" }
