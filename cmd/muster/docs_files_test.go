package main

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

// docs/files.md is what the types of job files and server configurations say
// of themselves: with -update it is written, else compared.
func TestDocsOfFiles(t *testing.T) {
	var b bytes.Buffer
	b.WriteString(`# Files

Generated from the types of package api (` + "`go test ./cmd/muster -run TestDocs -update`" + `).
Files are YAML or JSON and are read strictly: a field that is not listed here is rejected, with its
line and the nearest known name.

A command's environment has only the job's env, PATH, HOME and TMPDIR (directories of its own),
and MUSTER_INDEX, MUSTER_COUNT, MUSTER_ATTEMPT, MUSTER_JOB, MUSTER_JOB_VERSION, MUSTER_NAMESPACE and
MUSTER_ALLOC. Its stdin is empty. CPU is a weight, not a cap.

## Units

They are the same in job files, environments, the server's configuration and flags.

| what | written as | meaning |
|---|---|---|
| size | ` + "`64MiB`, `1.5GiB`; `64Mi`, `1Gi` (Kubernetes); `64m`, `1g`, `512k`" + ` (Docker) | steps of 1024 |
| size | ` + "`100MB`, `1GB`, `10kB`" + ` | steps of 1000 |
| size | ` + "`1048576`, `512B`" + ` | bytes |
| size | ` + "`512M`, `1G`, `64K`, `64mb`" + ` | rejected: steps of 1024 in Docker, of 1000 in Kubernetes |
| cores | ` + "`0.5`, `2`; `500m`" + ` (Kubernetes) | cores; thousandths of a core |
| duration | ` + "`90s`, `10m`, `1h30m`, `1d`, `1d12h`, `250ms`" + ` | a day has 24 hours |
| duration | ` + "`300`" + ` | seconds |
| duration | ` + "`1:00:00`" + ` (Slurm) | rejected: write ` + "`1h`" + ` |

So ` + "`m`" + ` is MiB of a size, thousandths of cores, and minutes of a duration: each as in the program
that has the unit. The HTTP API takes sizes and durations in these forms, and cores as a number.

## A job
`)
	fields(&b, reflect.TypeFor[api.JobSpec](), "")
	b.WriteString("\n## An environment\n")
	fields(&b, reflect.TypeFor[api.EnvironmentSpec](), "")
	b.WriteString("\n## A server's configuration\n")
	fields(&b, reflect.TypeFor[api.ServerConfig](), "")
	isPage(t, "docs/files.md", "the types", b.String())
}

// fields writes a table of a struct's fields, then those of the structs in it.
func fields(b *bytes.Buffer, t reflect.Type, at string) {
	b.WriteString("\n| field | type | meaning |\n|---|---|---|\n")
	type inner struct {
		t  reflect.Type
		at string
	}
	var more []inner
	for _, f := range reflect.VisibleFields(t) {
		if f.Anonymous {
			continue // its fields stand among the others
		}
		if f.Tag.Get("only") != "" && at == "" {
			continue // of another kind of file
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		kind, in := f.Type, f.Type
		word := ""
		for in.Kind() == reflect.Pointer || in.Kind() == reflect.Slice {
			if in.Kind() == reflect.Slice {
				word = "list of "
			}
			in = in.Elem()
		}
		switch {
		case in == reflect.TypeFor[api.Size]():
			word += "size"
		case in == reflect.TypeFor[api.Duration]():
			word += "duration"
		case in == reflect.TypeFor[muster.Secret]():
			word += "text"
		case in.Kind() == reflect.Struct:
			word += "fields below"
			path := at + name
			if kind.Kind() == reflect.Slice {
				path += "[]"
			}
			more = append(more, inner{in, path + "."})
		case in.Kind() == reflect.Map && in.Elem().Kind() == reflect.Struct:
			word += "names, each with the fields below"
			more = append(more, inner{in.Elem(), at + name + ".NAME."})
		case in.Kind() == reflect.Map:
			word += "names and texts"
		case in.Kind() == reflect.String:
			word += "text"
		case in.Kind() == reflect.Bool:
			word += "true or false"
		default:
			word += "number"
		}
		doc := f.Tag.Get("doc")
		if one := f.Tag.Get("enum"); one != "" {
			doc = strings.TrimSpace("One of " + strings.ReplaceAll(one, ",", ", ") + ". " + doc)
		}
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", at+name, word, strings.ReplaceAll(doc, "|", "\\|"))
	}
	for _, m := range more {
		fields(b, m.t, m.at)
	}
}
