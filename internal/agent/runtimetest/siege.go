package runtimetest

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/musterhq/muster/internal/agent/contract"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// FillAndAsk fills a sandbox by executions until the limit of processes refuses the next one, and then sends many requests at
// once to its init. Each must be answered: files are listed, and an execution starts or is refused as the user's failure.
func FillAndAsk(t testing.TB, s contract.Sandbox) {
	t.Helper()
	refused := false
	for range 200 {
		err := runSleep(t.Context(), s)
		if err == nil {
			continue
		}
		if !atProcessLimit(err) {
			t.Errorf("exec while it fills: %v", err)
			return
		}
		refused = true
		break
	}
	if !refused {
		t.Error("200 executions were started, whatever the limit")
	}
	const rounds, each = 3, 30
	for range rounds {
		var all sync.WaitGroup
		for range each {
			all.Go(func() {
				if err := listRoot(t.Context(), s); err != nil {
					t.Errorf("list files: %v", err)
				}
			})
			all.Go(func() {
				if err := runSleep(t.Context(), s); err != nil && !atProcessLimit(err) {
					t.Errorf("exec: %v", err)
				}
			})
		}
		all.Wait()
	}
	select {
	case <-s.Done():
		t.Errorf("the sandbox has ended: %+v, %v", s.Result(), s.Result().Failure)
	default:
	}
}

func atProcessLimit(err error) bool {
	var failed *initwire.Failed
	return errors.As(err, &failed) && failed.Class == initwire.ClassUser && failed.Reason == initwire.ReasonProcessLimit
}

func listRoot(ctx context.Context, s contract.Sandbox) error {
	conn, err := contract.Connect(ctx, s)
	if err != nil {
		return err
	}
	return initwire.ListFiles(ctx, conn, initwire.FileList{Path: "/"}, func(*initwire.FileEntry) error { return nil })
}

// runSleep starts an execution that stays.
func runSleep(ctx context.Context, s contract.Sandbox) error {
	conn, err := contract.Connect(ctx, s)
	if err != nil {
		return err
	}
	x, err := initwire.StartExec(ctx, conn, &initwire.Exec{Command: []string{"sleep", "1000"}, Detached: true})
	if err != nil {
		return err
	}
	return x.Close()
}
