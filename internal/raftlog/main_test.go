package raftlog

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
)

// childEnv makes the test binary a server that is to be killed: its value is
// what the child does, and its arguments follow, separated by newlines.
const childEnv = "MUSTER_RAFTLOG_TEST_CHILD"

func TestMain(m *testing.M) {
	if what := os.Getenv(childEnv); what != "" {
		child(strings.Split(what, "\n"))
		return
	}
	goleak.VerifyTestMain(m)
}

// child proposes for ever from several goroutines and says on standard output
// what was confirmed. With the default Fatal, like a real server.
func child(args []string) {
	dir, round, fault := args[0], args[1], args[2]
	c := small(dir, &recorder{})
	if fault == string(OpDecode) {
		c.Machine = &older{known: 20}
	}
	c.Fatal = nil
	c.SegmentSize = 32 << 10
	c.SnapshotEvery = 40
	c.SnapshotBytes = 32 << 10
	if fault != "" {
		var n atomic.Int64
		c.Fault = func(op Op, _ string) error {
			if string(op) == fault && n.Add(1) > 20 {
				return fmt.Errorf("broken on purpose")
			}
			return nil
		}
	}
	l, err := Open(c)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	ctx := context.Background()
	go func() { _ = l.Run(ctx) }()
	err = l.Lead(ctx, func(ctx context.Context, _ uint64) error {
		fmt.Println("leads")
		var wg sync.WaitGroup
		for w := range 8 {
			wg.Go(func() {
				for i := 0; ; i++ {
					p := fmt.Sprintf("%s/%d/%d/%s", round, w, i, strings.Repeat("x", rand.IntN(600)))
					if _, err := l.Propose(ctx, []byte(p)); err != nil {
						return
					}
					fmt.Printf("%s/%d/%d\n", round, w, i)
				}
			})
		}
		wg.Wait()
		return nil
	})
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func childCommand(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "-test.run=^$")
	cmd.Env = append(os.Environ(), childEnv+"="+strings.Join(args, "\n"))
	return cmd
}
