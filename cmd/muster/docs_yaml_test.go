package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/musterhq/muster/internal/specfile"
)

// TestPagesHaveKnownFields: each YAML block of a page is a job file, an environment's file or a
// configuration, or a part of one: every field in it exists, and every value is of its type.
func TestPagesHaveKnownFields(t *testing.T) {
	names, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, name := range append(names, "../../README.md") {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for i, block := range strings.Split(string(text), "\n```yaml\n")[1:] {
			block, _, _ = strings.Cut(block, "\n```")
			seen++
			if says := wrongFields(block); says != "" {
				t.Errorf("%s: YAML block %d:\n%s", strings.TrimPrefix(name, "../../"), i+1, says)
			}
		}
	}
	if seen < 15 {
		t.Errorf("only %d blocks were found: does the pattern still fit?", seen)
	}
}

// wrongFields says what is wrong with the fields of a block, as the kind of file that it fits best; ""
// if nothing is. What a part of a file lacks is not wrong.
func wrongFields(block string) string {
	best, least := "", -1
	for _, read := range []func(name string, data []byte) error{
		func(name string, data []byte) error { _, err := specfile.Job(name, data); return err },
		func(name string, data []byte) error { _, err := specfile.Environment(name, data); return err },
		func(name string, data []byte) error { _, err := specfile.Config(name, data); return err },
	} {
		err := read("block", []byte(block))
		var wrong *specfile.Error
		if !errors.As(err, &wrong) {
			return ""
		}
		count := 0
		for _, p := range wrong.Problems {
			// Only what is unknown, or of the wrong type, stands without a path or is said to be wrong.
			if strings.Contains(p.Message, "unknown field") || strings.Contains(p.Message, "it should be") || strings.HasPrefix(p.Message, "is wrong") {
				count++
			}
		}
		if least < 0 || count < least {
			best, least = err.Error(), count
		}
	}
	if least == 0 {
		return ""
	}
	return best
}
