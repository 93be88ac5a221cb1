package jobs

import (
	"strconv"
	"strings"
	"testing"

	"github.com/musterhq/muster/cmd/muster/internal/clitest"
)

func TestLastLines(t *testing.T) {
	for _, test := range []struct {
		text string
		n    int
		want string
	}{
		{"", 3, ""}, {"a", 1, "a"}, {"a\n", 1, "a\n"}, {"a\nb\nc\n", 2, "b\nc\n"}, {"a\nb\nc", 2, "b\nc"}, {"a\nb\n", 5, "a\nb\n"},
		{"a\nb\n", 0, ""}, {"\n\n\n", 2, "\n\n"}, {"a\n\n", 1, "\n"},
	} {
		if got := test.text[lastLines([]byte(test.text), test.n):]; got != test.want {
			t.Errorf("%d of %q: %q, want %q", test.n, test.text, got, test.want)
		}
	}
}

func TestTailOfLogsIsLinesOrBytes(t *testing.T) {
	s := withJob(t, 1)
	var all []string
	for i := range 30_000 {
		all = append(all, "line "+strconv.Itoa(i)+"\n")
	}
	s.Print(0, 1, "stdout", strings.Join(all, ""))
	s.End(0, 1, 0)
	s.EndJob("succeeded", "")
	last := func(n int) string { return strings.Join(all[len(all)-n:], "") }
	for args, want := range map[string]string{
		"--tail 2": last(2), "--tail 29000": last(29000), "--tail 30000": last(30000), "--tail 99999": last(30000), "--tail all": last(30000),
		"--tail 0": "", "--tail 0B": "", "--tail 11B": last(1), "-f --tail 3": last(3), "--tail 1k": last(30000)[len(last(30000))-1024:],
	} {
		s.Muster(nil, append([]string{"job", "logs", "web", "--stdout"}, strings.Fields(args)...)...).Check(t, 0, want, "")
	}
	s.Muster(nil, "job", "logs", "web", "--tail", "-3").Check(t, 2, "", `muster: --tail: "-3" is negative; .*\n`)
	s.Muster(nil, "job", "logs", "web", "--tail", "ten").Check(t, 2, "", `muster: --tail: "ten" is neither a number of lines nor a size; .*\n`)
}

// The tail is of what there is when the following begins. An attempt that starts later is whole.
func TestLaterAttemptsAreFollowedWhole(t *testing.T) {
	s := withJob(t, 1)
	s.Print(0, 1, "stdout", "old\nolder\nlast\n")
	p := s.Begin(nil, "job", "logs", "-f", "web", "--tail", "1")
	clitest.Until(t, "last\n", p.Out.String)
	s.Print(0, 1, "stdout", "then\n")
	s.End(0, 1, 1)
	s.Start(0, 2)
	s.Print(0, 2, "stdout", "a\nb\nc\n")
	s.End(0, 2, 0)
	s.EndJob("succeeded", "")
	if code, got := p.End(t), p.Out.String(); code != 0 || got != "last\nthen\na\nb\nc\n" {
		t.Errorf("exit code %d, %q", code, got)
	}
}
