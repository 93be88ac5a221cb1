package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/internal/locate"
)

// The scripts run this test's own program as muster, so that what they test is what is built.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"muster": main})
}

// TestScript runs the scripts of testdata/script against real servers. Their
// nodes need muster-node and muster-init, as `make build` leaves them in bin/.
func TestScript(t *testing.T) {
	bin, err := filepath.Abs("../../bin")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(bin, "muster-node")); err != nil {
		t.Fatalf("%v; run `make build` first", err)
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			e.Setenv("XDG_CONFIG_HOME", filepath.Join(e.WorkDir, "config"))
			e.Setenv("HOME", e.WorkDir)
			e.Setenv("PATH", e.Getenv("PATH")+string(filepath.ListSeparator)+bin)
			// The paths of sockets below a data directory are bounded: these are short.
			data, err := os.MkdirTemp("", "m")
			if err != nil {
				return err
			}
			e.Setenv("D", data)
			e.Defer(func() { _ = os.RemoveAll(data) })
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"ready":    ready,
			"matches":  matches,
			"eventual": eventual,
		},
	})
}

// patience is how long scripts wait for what should come soon.
const patience = 60 * time.Second

// ready waits until the server of a data directory takes requests: ready DIR.
func ready(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: ready DIR")
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		place, err := locate.Find(locate.Given{DataDir: ts.MkAbs(args[0])})
		if err == nil {
			var c *client.Client
			if c, err = client.New(client.Config{Address: place.Address, Token: place.Token}); err == nil {
				one, cancel := context.WithTimeout(ctx, time.Second)
				err = c.WaitReady(one)
				cancel()
			}
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
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
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
