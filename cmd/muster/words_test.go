package main

import (
	"strings"
	"testing"

	"github.com/musterhq/muster/cmd/muster/internal/clitest"
)

func TestOtherWords(t *testing.T) {
	s := clitest.New(t, assemble)
	for word := range otherWords {
		for _, more := range [][]string{nil, {"-a", "x"}, {"--help"}} {
			r := s.Muster(nil, append([]string{word}, more...)...)
			if r.Code != 2 || !strings.HasPrefix(r.Stderr, "muster: there is no command \""+word+"\": ") {
				t.Errorf("%s %v: exit code %d, %q", word, more, r.Code, r.Stderr)
			}
		}
	}
	for words, want := range map[string]string{
		"job ls":        "there is no command \"job ls\": `muster job list` is the one to use: List jobs\n",
		"job cancel x":  "there is no command \"job cancel\": `muster job stop NAME` is the one to use: Stop a job\n",
		"node rm -f x":  "there is no command \"node rm\": `muster node destroy ID` is the one to use: ",
		"env get x":     "there is no command \"env get\": `muster env show NAME` is the one to use: ",
		"image rm":      "there is no command \"image rm\": `muster image prune",
		"job bogus":     "unknown command \"bogus\" for \"muster job\"\n",
		"env delete":    "accepts 1 arg(s), received 0\n", // its own word
		"pool describe": "there is no command \"pool describe\": `muster pool show NAME` is the one to use: ",
	} {
		if r := s.Muster(nil, strings.Fields(words)...); r.Code != 2 || !strings.HasPrefix(r.Stderr, "muster: "+want) {
			t.Errorf("%s: exit code %d, %q", words, r.Code, r.Stderr)
		}
	}
	if r := s.Muster(nil, "job", "--help"); strings.Contains(r.Stdout, "cancel") {
		t.Error("the help tells of commands that there are not")
	}
	if r := s.Muster(nil, "--help"); strings.Contains(r.Stdout, "inspect") {
		t.Error("the help tells of commands that there are not")
	}
}
