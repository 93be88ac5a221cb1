package isolation

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The page and the tests are one: what is promised is tried, and what is tried is promised.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/isolation.md")
	if os.IsNotExist(err) {
		t.Skip("the page is not here: these tests run without their sources")
	}
	if err != nil {
		t.Fatal(err)
	}
	var source strings.Builder
	files, _ := filepath.Glob("*_test.go")
	runtime, _ := filepath.Glob("../agent/oci/*_test.go") // make isolation runs those that the page names
	files = append(files, runtime...)
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		source.Write(b)
	}
	attempts := names(t)
	named := regexp.MustCompile("`([A-Za-z0-9-]+)`")
	var seen []string
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || strings.HasPrefix(cells[3], "---") || strings.TrimSpace(cells[3]) == "test" {
			continue
		}
		found := named.FindAllStringSubmatch(cells[3], -1)
		if len(found) == 0 {
			t.Errorf("nothing tries %q", strings.TrimSpace(cells[1]))
		}
		for _, f := range found {
			seen = append(seen, f[1])
			isTest := strings.HasPrefix(f[1], "Test") && strings.Contains(source.String(), "func "+f[1]+"(t *testing.T)")
			if !isTest && !slices.Contains(attempts, f[1]) {
				t.Errorf("there is no test %s", f[1])
			}
		}
	}
	for _, a := range attempts {
		if !slices.Contains(seen, a) {
			t.Errorf("the page does not tell of %s", a)
		}
	}
}
