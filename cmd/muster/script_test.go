package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/cmd/muster/internal/clitest"
	"github.com/musterhq/muster/internal/locate"
)

// The scripts run this test's own program as muster, so that what they test is what is built.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"muster": main})
}

// TestScript runs the scripts of testdata/script against real servers. Their
// nodes need the programs of `make build`.
func TestScript(t *testing.T) {
	bin := built(t)
	testscript.Run(t, testscript.Params{
		Dir:   "testdata/script",
		Setup: func(e *testscript.Env) error { return setup(e, bin) },
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"ready":    ready,
			"matches":  matches,
			"eventual": eventual,
			"alone":    alone,
			"tight":    tight,
		},
	})
}

// built is the directory where `make build` leaves the programs that nodes need.
func built(t *testing.T) string {
	t.Helper()
	bin, err := filepath.Abs("../../bin")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(bin, "muster-node")); err != nil {
		t.Fatalf("%v; run `make build` first", err)
	}
	return bin
}

// setup gives each script a directory $D for a server's data, and muster.yaml, a
// configuration for a server on it whose nodes go soon when they are idle.
func setup(e *testscript.Env, bin string) error {
	e.Setenv("XDG_CONFIG_HOME", filepath.Join(e.WorkDir, "config"))
	e.Setenv("HOME", e.WorkDir)
	e.Setenv("PATH", e.Getenv("PATH")+string(filepath.ListSeparator)+bin)
	// The paths of sockets below a data directory are bounded: these are short.
	data, err := os.MkdirTemp("", "m")
	if err != nil {
		return err
	}
	e.Setenv("D", data)
	e.Setenv("TMPDIR", data)
	e.Defer(func() {
		for _, pid := range below(data) { // of a script that failed; others end with alone
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		_ = os.RemoveAll(data)
	})
	config := `data_dir: ` + data + `/d
listen: 127.0.0.1:0
low_water: 1MiB
providers:
- {name: local, type: local, offerings: [{name: small, cpu: 1, memory: 1GiB, price: 0.01}]}
pools:
- {name: dev, provider: local, max: 3, idle_timeout: 300ms}
`
	return os.WriteFile(filepath.Join(e.WorkDir, "muster.yaml"), []byte(config), 0o600)
}

// tight writes muster.yaml so that the server takes work, and finds too little of the disk free to
// store output.
func tight(ts *testscript.TestScript, neg bool, args []string) {
	var st syscall.Statfs_t
	ts.Check(syscall.Statfs(ts.Getenv("D"), &st))
	free := st.Bavail * uint64(st.Bsize)
	file := ts.MkAbs("muster.yaml")
	b, err := os.ReadFile(file)
	ts.Check(err)
	changed := strings.Replace(string(b), "low_water: 1MiB", fmt.Sprintf("low_water: %d", free/5*4), 1)
	ts.Check(os.WriteFile(file, []byte(changed), 0o600))
}

// below are the processes that have a directory in their command line.
func below(dir string) []int {
	var pids []int
	entries, _ := os.ReadDir("/proc")
	for _, p := range entries {
		pid, err := strconv.Atoi(p.Name())
		if err != nil {
			continue
		}
		b, err := os.ReadFile(filepath.Join("/proc", p.Name(), "cmdline"))
		if err == nil && strings.Contains(string(b), dir+"/") {
			pids = append(pids, pid)
		}
	}
	return pids
}

// alone waits until nothing runs any more that has to do with $D.
func alone(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: alone")
	}
	for deadline := time.Now().Add(clitest.Patience); ; time.Sleep(50 * time.Millisecond) {
		pids := below(ts.Getenv("D"))
		if len(pids) == 0 {
			return
		}
		if time.Now().After(deadline) {
			b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pids[0]))
			ts.Fatalf("%d processes are left; one is %q", len(pids), b)
		}
	}
}

// ready waits until the server of a data directory takes requests, or the one
// that was started last: ready [DIR].
func ready(ts *testscript.TestScript, neg bool, args []string) {
	given := locate.Given{}
	if neg || len(args) > 1 {
		ts.Fatalf("usage: ready [DIR]")
	}
	if len(args) == 1 {
		given.DataDir = ts.MkAbs(args[0])
	}
	ctx, cancel := context.WithTimeout(context.Background(), clitest.Patience)
	defer cancel()
	for {
		if given.DataDir == "" { // our own environment is not the script's
			b, err := os.ReadFile(filepath.Join(ts.Getenv("XDG_CONFIG_HOME"), "muster", "current.json"))
			var current locate.Current
			if err == nil && json.Unmarshal(b, &current) == nil {
				given.DataDir = current.DataDir
			}
		}
		err := errors.New("none was started")
		if given.DataDir != "" {
			err = answers(ctx, given)
		}
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			ts.Fatalf("the server does not get ready: %v", err)
		}
		time.Sleep(20 * time.Millisecond) // then look again
	}
}

func answers(ctx context.Context, given locate.Given) error {
	place, err := locate.Find(given)
	if err != nil {
		return err
	}
	c, err := client.New(client.Config{Address: place.Address, Token: place.Token})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return c.WaitReady(ctx)
}

// matches compares a file with a regular expression for the whole of it, in a
// file: matches FILE PATTERNFILE. FILE may be stdout or stderr.
func matches(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: matches FILE PATTERNFILE")
	}
	got, pattern := ts.ReadFile(args[0]), ts.ReadFile(args[1])
	re, err := regexp.Compile("^" + strings.TrimSuffix(pattern, "\n") + "\n?$")
	ts.Check(err)
	if re.MatchString(got) == neg {
		ts.Fatalf("%s:\n%s\n%s:\n%s", args[0], got, args[1], pattern)
	}
}

// eventual runs a command again and again until its output matches: eventual PATTERN muster ARG...
func eventual(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: eventual PATTERN COMMAND ARG...")
	}
	re, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	for deadline := time.Now().Add(clitest.Patience); ; time.Sleep(50 * time.Millisecond) {
		err := ts.Exec(args[1], args[2:]...)
		out := ts.ReadFile("stdout")
		if err == nil && re.MatchString(out) {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("%v", errors.Join(err, fmt.Errorf("%v never matched %s:\n%s", args[1:], args[0], out)))
		}
	}
}
