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
	if r := s.Muster(nil, "--help"); strings.Contains(r.Stdout, "inspect") {
		t.Error("the help tells of commands that there are not")
	}
}
