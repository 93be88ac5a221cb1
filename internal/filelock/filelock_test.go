package filelock

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestTake(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	open := func() *os.File {
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	first, second := open(), open()
	if !Take(t.Context(), first, time.Millisecond) {
		t.Fatal("a free lock is not taken")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if Take(ctx, second, time.Millisecond) {
		t.Error("it is taken twice")
	}
	took := make(chan bool)
	go func() { took <- Take(t.Context(), second, time.Millisecond) }()
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if !<-took {
		t.Error("it is not taken when it is free")
	}
}
