package main

import (
	"strings"
	"testing"
)

func TestOtherWords(t *testing.T) {
	s := newStub(t)
	for word := range otherWords {
		for _, more := range [][]string{nil, {"-a", "x"}, {"--help"}} {
			r := s.muster(nil, append([]string{word}, more...)...)
			if r.code != 2 || !strings.HasPrefix(r.stderr, "muster: there is no command \""+word+"\": ") {
				t.Errorf("%s %v: exit code %d, %q", word, more, r.code, r.stderr)
			}
		}
	}
	if r := s.muster(nil, "--help"); strings.Contains(r.stdout, "inspect") {
		t.Error("the help tells of commands that there are not")
	}
}
