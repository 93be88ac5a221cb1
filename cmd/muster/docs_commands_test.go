package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster/cmd/muster/internal/cli"
)

var (
	inlineCode = regexp.MustCompile("`([^`]+)`")
	// commandName is a word that could be meant as a command: placeholders and sketches are not.
	commandName = regexp.MustCompile(`^[a-z]+$`)
	// called is a command line of muster: at the beginning of code, or after a shell's separator.
	called = regexp.MustCompile(`(?:^|[;|&(] ?|\$\(|= )(?:sudo )?(?:bin/)?muster ([^;|&()#]*)`)
)

// TestPagesNameCommandsThatExist: each command line of muster in a page names a command that exists,
// with flags that it has.
func TestPagesNameCommandsThatExist(t *testing.T) {
	root := assemble(&cli.App{})
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	names, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	names = append(names, "../../README.md", "../../ARCHITECTURE.md", "../../CONTRIBUTING.md", "../../SECURITY.md")
	seen := 0
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		block := false
		for i, line := range strings.Split(string(text), "\n") {
			if strings.HasPrefix(strings.TrimSpace(line), "```") {
				block = !block
				continue
			}
			var code []string
			if block || strings.HasPrefix(line, "    ") {
				code = append(code, strings.TrimPrefix(strings.TrimSpace(line), "$ "))
			} else {
				for _, m := range inlineCode.FindAllStringSubmatch(line, -1) {
					code = append(code, m[1])
				}
			}
			for _, c := range code {
				for _, m := range called.FindAllStringSubmatch(c, -1) {
					seen++
					if err := knownCommand(root, m[1]); err != nil {
						t.Errorf("%s:%d: muster %s: %v", strings.TrimPrefix(name, "../../"), i+1, m[1], err)
					}
				}
			}
		}
	}
	if seen < 100 {
		t.Errorf("only %d command lines were found: does the pattern still fit?", seen)
	}
}

// knownCommand returns an error if the words do not begin with a command, or have a flag that it has
// not. Words after -- belong to another program.
func knownCommand(root *cobra.Command, line string) error {
	words := strings.Fields(line)
	c := root
	for i, w := range words {
		if w == "--" {
			break
		}
		if strings.HasPrefix(w, "-") {
			flag, _, _ := strings.Cut(w, "=")
			if !hasFlag(c, flag) {
				return fmt.Errorf("there is no flag %s", flag)
			}
			continue
		}
		sub := subcommand(c, w)
		switch {
		case sub != nil:
			c = sub
		case c.HasSubCommands() && commandName.MatchString(w) && i == depth(c):
			return fmt.Errorf("there is no command %s", w)
		}
	}
	return nil
}

func depth(c *cobra.Command) int { return len(strings.Fields(c.CommandPath())) - 1 }

func subcommand(c *cobra.Command, name string) *cobra.Command {
	for _, s := range c.Commands() {
		if s.Name() == name || s.HasAlias(name) {
			return s
		}
	}
	return nil
}

func hasFlag(c *cobra.Command, flag string) bool {
	c.InitDefaultHelpFlag()
	if name, ok := strings.CutPrefix(flag, "--"); ok {
		return c.Flags().Lookup(name) != nil || c.InheritedFlags().Lookup(name) != nil || c.Root().PersistentFlags().Lookup(name) != nil || name == "version"
	}
	for _, short := range strings.TrimPrefix(flag, "-") {
		if c.Flags().ShorthandLookup(string(short)) == nil && c.InheritedFlags().ShorthandLookup(string(short)) == nil {
			return false
		}
	}
	return true
}
