package execs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/musterhq/muster/internal/sandbox/output"
	"github.com/musterhq/muster/internal/sandbox/sandboxtest"
	"github.com/musterhq/muster/internal/sandbox/system"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// TestSpoolsFullOfEnded: the output of what ended first makes room for what runs, and no more of it than is needed.
func TestSpoolsFullOfEnded(t *testing.T) {
	const each = 1000
	dir := t.TempDir()
	fd := sandboxtest.OpenDir(t, dir)
	x := &Executions{}
	x.Open(Config{})
	for _, id := range []string{"oldest", "older", "young"} {
		e := &execution{x: x, id: id, want: &initwire.Exec{}, over: make(chan struct{})}
		for _, stream := range []string{initwire.Stdout, initwire.Stderr} {
			p := output.NewSpool(&x.spooled, fd, "exec-"+id+"."+stream)
			p.Write(sandboxtest.Written(0, each), nil)
			p.Finish()
			e.spools = append(e.spools, p)
		}
		close(e.over)
		x.byID[id], x.ended = e, append(x.ended, e)
	}
	if n := x.spooled.Load(); n != 6*each {
		t.Fatalf("%d bytes are counted", n)
	}
	// Others that run hold the rest, and as much more as only two of the ended ones have.
	others := int64(initwire.SpoolsLimit - 6*each + 2*each + 1)
	x.spooled.Add(others)
	r, w, err := system.Pipe()
	must(t, err)
	printer := os.NewFile(uintptr(w), "printer")
	from, err := output.NewSource(r, "output", &x.pool, nil)
	must(t, err)
	_, err = printer.WriteString("what it prints")
	must(t, err)
	must(t, printer.Close())
	p := output.NewSpool(&x.spooled, fd, "exec-runs.stdout")
	p.MakeRoom = x.makeRoom
	p.Keep(from)
	must(t, from.Endpoint.Close())

	if p.Size() != int64(len("what it prints")) || p.Lost() != 0 {
		t.Errorf("keeps %d, lost %d", p.Size(), p.Lost())
	}
	var left []string
	files, err := os.ReadDir(dir)
	must(t, err)
	for _, f := range files {
		id, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(f.Name()), "exec-"), ".")
		left = append(left, id)
	}
	if got := strings.Join(left, " "); got != "runs young young" {
		t.Errorf("left: %s", got)
	}
	if n := x.spooled.Load() - others; n != 2*each+p.Size() {
		t.Errorf("%d bytes are counted", n)
	}
	// How they ended is known all the same.
	if got := x.list(); len(got) != 3 || got[0].ID != "oldest" {
		t.Errorf("%+v", got)
	}
}
