package main

import (
	"strings"
	"testing"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/cmd/muster/internal/clitest"
)

// Names of objects come from the server. One that does not answer completes nothing, and says nothing.
func TestCompletion(t *testing.T) {
	s := clitest.New(t, assemble)
	s.Job = &api.Job{Namespace: "default", Name: "web", Stage: "live"}
	for args, want := range map[string]string{
		"job show":                "web\n:4\n",
		"job show we":             "web\n:4\n",
		"exec w":                  "web\n:4\n",
		"job show other":          ":0\n",
		"run --network":           "none\nbridge\nhost\n:4\n",
		"job list --status":       strings.Join(api.JobStatuses(), "\n") + "\n:4\n",
		"--addr 127.0.0.1:1 x py": ":0\n",
	} {
		words := append([]string{"__complete"}, strings.Fields(args)...)
		if last := words[len(words)-1]; last == "show" || strings.HasPrefix(last, "--") {
			words = append(words, "")
		}
		if r := s.Muster(nil, words...); r.Code != 0 || r.Stdout != want {
			t.Errorf("%s: exit code %d, %q, want %q (%s)", args, r.Code, r.Stdout, want, r.Stderr)
		}
	}
}

// Each command that is said to complete names exists.
func TestCompletedCommandsExist(t *testing.T) {
	root := assemble(&cli.App{})
	for path := range argumentNames {
		c, _, err := root.Find(strings.Fields(path))
		if err != nil || strings.TrimPrefix(c.CommandPath(), "muster ") != path || c.ValidArgsFunction == nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}
