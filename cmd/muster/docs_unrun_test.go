package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// noCommands is the reason of pages without command lines, which is checked.
const noCommands = "it has no command lines"

// unrun are the pages whose command lines no test here runs, with the reason.
var unrun = map[string]string{
	"docs/benchmarks.md":       noCommands,
	"docs/cli.md":              "it is generated from the commands, and their examples name jobs of their own; testdata/script runs the commands",
	"docs/clouds/azure.md":     "it needs an account",
	"docs/clouds/ec2.md":       "it needs an account",
	"docs/clouds/gce.md":       "it needs an account",
	"docs/clouds/hetzner.md":   "it needs an account",
	"docs/clouds/images.md":    "it needs a machine of a cloud whose disk is to become an image",
	"docs/clouds/openstack.md": "it needs an account",
	"docs/clouds/qemu.md":      "it needs an image of a machine and minutes: make e2e-clouds and make e2e-vm-unit",
	"docs/events.md":           noCommands,
	"docs/exec.md":             noCommands,
	"docs/files.md":            noCommands,
	"docs/glossary.md":         noCommands,
	"docs/isolation.md":        noCommands,
	"docs/limits.md":           noCommands,
	"docs/metrics.md":          noCommands,
	"docs/servers.md":          "it needs three hosts; make e2e-ha and the tests of internal/server start, join, transfer and remove servers",
}

// TestEveryPageRuns: a page is run by TestPagesRun, or there is a reason why not.
func TestEveryPageRuns(t *testing.T) {
	pages := []string{"README.md"}
	err := filepath.WalkDir("../../docs", func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".md") {
			pages = append(pages, strings.TrimPrefix(filepath.ToSlash(path), "../../"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		runs := slices.ContainsFunc(pageRuns, func(p pageRun) bool { return p.page == page })
		why, unrun := unrun[page]
		switch {
		case runs == unrun:
			t.Errorf("%s is to be in one of pageRuns and unrun", page)
		case why == noCommands:
			for _, line := range commandLines(t, page) {
				t.Errorf("%s has a command line, and is listed as a page without: %s", page, line)
			}
		}
	}
	for page := range unrun {
		if !slices.Contains(pages, page) {
			t.Errorf("there is no page %s", page)
		}
	}
}

// commandLines are the commands of muster in the blocks of a page.
func commandLines(t *testing.T, page string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../..", page))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	in := false
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			in = !in
		} else if m := musterLine.FindStringSubmatch(strings.TrimSpace(line)); in && m != nil {
			out = append(out, m[1])
		}
	}
	return out
}
