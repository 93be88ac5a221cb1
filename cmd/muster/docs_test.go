package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster/cmd/muster/internal/cli"
)

var update = flag.Bool("update", false, "write docs/cli.md from the commands")

// docs/cli.md is what the commands say of themselves: with -update it is written, else compared.
func TestDocs(t *testing.T) {
	const path = "../../docs/cli.md"
	var b bytes.Buffer
	b.WriteString("# The command line\n\nGenerated from `muster --help` of each command (`go test ./cmd/muster -run TestDocs -update`).\n")
	document(&b, assemble(&cli.App{}))
	if *update {
		if err := os.MkdirAll("../../docs", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	was, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(was, b.Bytes()) {
		t.Error("docs/cli.md is not what the commands say; run this test with -update")
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
