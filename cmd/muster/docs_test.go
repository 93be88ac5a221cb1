package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster/cmd/muster/internal/cli"
)

var update = flag.Bool("update", false, "write docs/cli.md from the commands")

// docs/cli.md is what the commands say of themselves: with -update it is written, else compared.
func TestDocs(t *testing.T) {
	var b bytes.Buffer
	b.WriteString("# The command line\n\nGenerated from `muster --help` of each command (`go test ./cmd/muster -run TestDocs -update`).\n")
	document(&b, assemble(&cli.App{}))
	isPage(t, "docs/cli.md", "the commands", b.String())
}

// isPage checks that a page, by its path from the root, is what its source says. With -update it
// writes the page first.
func isPage(t *testing.T, path, source, text string) {
	t.Helper()
	file := filepath.Join("../..", path)
	if *update {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	was, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(was) != text {
		t.Errorf("%s is not what %s say; run this test with -update", path, source)
	}
}

func document(b *bytes.Buffer, c *cobra.Command) {
	fmt.Fprintf(b, "\n## %s\n\n", c.CommandPath())
	for line := range strings.Lines(c.Long) {
		if strings.HasPrefix(line, "  ") {
			line = "  " + line // a block of code in Markdown
		}
		b.WriteString(line)
	}
	b.WriteString("\n")
	flags := c.NonInheritedFlags().FlagUsages()
	if !c.HasSubCommands() || flags != "" {
		fmt.Fprintf(b, "\n```\n%s\n", c.UseLine())
		for line := range strings.Lines(flags) {
			b.WriteString(strings.TrimRight(line, " \n") + "\n")
		}
		b.WriteString("```\n")
	}
	for _, s := range c.Commands() {
		if s.IsAvailableCommand() {
			document(b, s)
		}
	}
}
