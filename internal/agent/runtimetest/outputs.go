package runtimetest

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster/internal/agent/contract"
)

// outputCases: every byte, or a word about it.
func outputCases() []testCase {
	return []testCase{
		{"output/streams are apart", apart},
		{"output/nothing", nothingPrinted},
		{"output/binary is exact", binary},
		{"output/large and bounded", large},
		{"output/both streams bounded", bothBounded},
		{"output/many short lines", shortLines},
		{"output/followed while it runs", followed},
		{"output/whole at the end", whole},
	}
}

func apart(r *rig) {
	s, _ := r.run(program{sh: "echo out; echo err >&2", fake: []string{"stdout", "out\n", ";", "stderr", "err\n"}})
	if out, err := r.output(s, "stdout"), r.output(s, "stderr"); out != "out\n" || err != "err\n" {
		r.Errorf("stdout %q, stderr %q", out, err)
	}
}

func nothingPrinted(r *rig) {
	s, _ := r.run(program{sh: ":", fake: []string{"exit", "0"}})
	for _, stream := range []string{"stdout", "stderr"} {
		start, end, err := s.Output(stream).Bounds()
		if start != 0 || end != 0 || err != nil {
			r.Errorf("%s: bounds %d, %d, %v", stream, start, end, err)
		}
		if n, err := s.Output(stream).ReadAt(make([]byte, 10), 0); n != 0 || err != io.EOF {
			r.Errorf("%s: read %d, %v", stream, n, err)
		}
	}
}

func binary(r *rig) {
	c := r.config(program{sh: "cat out.bin; cat err.bin >&2"})
	source := rand.NewChaCha8([32]byte{7})
	data := make([]byte, 700_001)
	_, _ = source.Read(data)
	r.script(c, "out.bin", string(data[:400_000]), 0o600)
	r.script(c, "err.bin", string(data[400_000:]), 0o600)
	s := r.start(c)
	r.wait(s)
	if r.output(s, "stdout") != string(data[:400_000]) || r.output(s, "stderr") != string(data[400_000:]) {
		r.Error("the output is not what was printed")
	}
}

// pattern is what `yes abcdefg` and the fake's "print" print, from an offset on.
func pattern(offset, n int64) string {
	const word = "abcdefg\n"
	return strings.Repeat(word, int(n/8)+2)[offset%8:][:n]
}

func large(r *rig) {
	if testing.Short() {
		r.Skip("short")
	}
	const total, limit = 100_000_000, 8 << 20
	c := r.config(program{sh: fmt.Sprintf("yes abcdefg | head -c %d", total), fake: []string{"print", fmt.Sprint(total)}})
	c.OutputLimit = limit
	s := r.start(c)
	if result := r.wait(s); result.Failure != nil || result.OutputLost != 0 {
		r.Fatalf("result %+v", result)
	}
	r.checkTail(s, "stdout", total, limit)
}

// checkTail: the end of a stream is there, at most limit of it, and what came before is told as dropped.
func (r *rig) checkTail(s contract.Sandbox, stream string, total, limit int64) {
	r.Helper()
	log := s.Output(stream)
	start, end, err := log.Bounds()
	if err != nil || end != total || end-start > limit || end-start < limit/2 {
		r.Fatalf("%s: bounds %d to %d, %v; want the last of %d, at most %d", stream, start, end, err, total, limit)
	}
	if got := r.output(s, stream); got != pattern(start, end-start) {
		r.Errorf("%s: the tail is not what was printed there", stream)
	}
	buf := make([]byte, 100)
	for _, at := range []int64{0, start - 1} {
		if _, err := log.ReadAt(buf, at); !errors.Is(err, contract.ErrOutputDropped) {
			r.Errorf("%s: read at %d: %v, want ErrOutputDropped", stream, at, err)
		}
	}
	for _, at := range []int64{start, start + 1, (start + end) / 2, end - 5} {
		n, err := log.ReadAt(buf, at)
		if err != nil || n == 0 || string(buf[:n]) != pattern(at, int64(n)) {
			r.Errorf("%s: read at %d: %q, %v", stream, at, buf[:n], err)
		}
	}
	if n, err := log.ReadAt(buf, end+1000); n != 0 || err != io.EOF {
		r.Errorf("%s: read after the end: %d, %v", stream, n, err)
	}
}

func bothBounded(r *rig) {
	const total, limit = 3_000_000, 1 << 20
	c := r.config(program{
		sh:   fmt.Sprintf("yes abcdefg | head -c %d & yes abcdefg | head -c %d >&2; wait", total, 2*total),
		fake: []string{"print", fmt.Sprint(total), ";", "print", fmt.Sprint(2 * total), "stderr"},
	})
	c.OutputLimit = limit
	s := r.start(c)
	r.wait(s)
	r.checkTail(s, "stdout", total, limit)
	r.checkTail(s, "stderr", 2*total, limit)
}

func shortLines(r *rig) {
	if testing.Short() {
		r.Skip("short")
	}
	lines := cmp.Or(r.suite.ShortLines, 1_000_000)
	out := r.succeed(program{sh: fmt.Sprintf("i=0; while [ $i -lt %d ]; do echo $i; i=$((i+1)); done", lines)})
	var want strings.Builder
	for i := range lines {
		fmt.Fprintln(&want, i)
	}
	if out != want.String() {
		r.Errorf("%d bytes are not the %d that were printed", len(out), want.Len())
	}
}

func followed(r *rig) {
	c := r.config(program{
		sh:   "echo one; while [ ! -e go ]; do sleep 0.02; done; echo two",
		fake: []string{"stdout", "one\n", ";", "until", "go", ";", "stdout", "two\n"},
	})
	s := r.start(c)
	r.untilPrinted(s, "one\n")
	buf := make([]byte, 10)
	if n, err := s.Output("stdout").ReadAt(buf, 4); n != 0 || err != io.EOF {
		r.Errorf("read at the end of a running one: %d, %v", n, err)
	}
	select {
	case <-s.Done():
		r.Fatal("ended early")
	case <-time.After(20 * time.Millisecond):
	}
	r.script(c, "go", "", 0o600)
	r.wait(s)
	if n, err := s.Output("stdout").ReadAt(buf, 4); string(buf[:n]) != "two\n" {
		r.Errorf("read %q, %v", buf[:n], err)
	}
}

// whole: when Done is closed, not a byte is missing; a race, so tried often.
func whole(r *rig) {
	for range 20 {
		s, _ := r.run(program{sh: "yes abcdefg | head -c 300000; echo err >&2", fake: []string{"print", "300000"}})
		if out := r.output(s, "stdout"); out != pattern(0, 300000) {
			r.Fatalf("%d bytes", len(out))
		}
	}
}
