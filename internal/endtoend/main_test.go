package endtoend

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/musterhq/muster/internal/programtest"
)

var binFlag = flag.String("endtoend.bin", "", "directory with muster, muster-node and muster-init to measure, instead of building them")

// programs are built when the first test or benchmark asks for them.
var programs = struct {
	once               sync.Once
	muster, node, init string
	dir                string // where they were built; deleted at the end
	err                error
}{}

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	if programs.dir != "" {
		if err := os.RemoveAll(programs.dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	os.Exit(code)
}

// needPrograms builds the programs.
func needPrograms(tb testing.TB) {
	tb.Helper()
	programs.once.Do(func() { programs.err = build() })
	if programs.err != nil {
		tb.Fatal(programs.err)
	}
}

func build() error {
	dir := *binFlag
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "meb-"); err != nil {
			return err
		}
		programs.dir = dir
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	programs.muster, programs.node, programs.init = at("muster"), at("muster-node"), at("muster-init")
	if *binFlag != "" {
		return nil
	}
	if programs.init, err = programtest.Init(dir); err != nil {
		return err
	}
	if programs.node, err = programtest.Node(dir); err != nil {
		return err
	}
	programs.muster, err = programtest.Muster(dir)
	return err
}
