package muster_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// docs/limits.md promises only what a test holds: each row names at least one, and the tests exist.
func TestLimitsPage(t *testing.T) {
	tests := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range declared.FindAllSubmatch(source, -1) {
			tests[string(m[1])] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("docs/limits.md")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`(Test\\w+)`")
	for i, line := range strings.Split(string(page), "\n") {
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|---") || strings.HasPrefix(line, "| limit |") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		if len(cells) != 5 {
			t.Errorf("docs/limits.md:%d: a row has 5 cells, this one has %d", i+1, len(cells))
			continue
		}
		for _, cell := range cells {
			if strings.TrimSpace(cell) == "" {
				t.Errorf("docs/limits.md:%d: an empty cell", i+1)
			}
		}
		names := named.FindAllStringSubmatch(cells[4], -1)
		if len(names) == 0 {
			t.Errorf("docs/limits.md:%d: no test is named", i+1)
		}
		for _, n := range names {
			if !tests[n[1]] {
				t.Errorf("docs/limits.md:%d: there is no %s", i+1, n[1])
			}
		}
	}
}
