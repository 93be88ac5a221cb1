package wait_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster/internal/wait"
)

func TestForTakesItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if !wait.For(t.Context(), time.Minute) || time.Since(began) != time.Minute {
			t.Errorf("it took %v", time.Since(began))
		}
	})
}

func TestForEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if wait.For(ctx, time.Minute) || time.Since(began) != time.Second {
			t.Errorf("it took %v", time.Since(began))
		}
		// Never by luck: a context that has ended counts more than a time that is over.
		for range 100 {
			if wait.For(ctx, 0) || wait.For(ctx, -1) {
				t.Fatal("it waited although its context had ended")
			}
		}
	})
}

func TestPokeIsKeptOnce(t *testing.T) {
	c := make(chan struct{}, 1)
	wait.Poke(c)
	wait.Poke(c)
	if len(c) != 1 {
		t.Errorf("%d wake-ups are kept", len(c))
	}
	wait.Drain(c)
	wait.Drain(c)
	if len(c) != 0 {
		t.Errorf("%d wake-ups are left", len(c))
	}
}

func TestEitherEndsWithTheFirst(t *testing.T) {
	why := errors.New("the server stops")
	other, stop := context.WithCancelCause(t.Context())
	ctx, cancel := wait.Either(t.Context(), other)
	defer cancel()
	if ctx.Err() != nil {
		t.Fatal("it has ended before either")
	}
	stop(why)
	<-ctx.Done()
	if context.Cause(ctx) != why {
		t.Errorf("its cause is %v", context.Cause(ctx))
	}
	first, end := context.WithCancel(t.Context())
	ctx, cancel = wait.Either(first, t.Context())
	defer cancel()
	end()
	<-ctx.Done()
	if context.Cause(ctx) != context.Canceled {
		t.Errorf("its cause is %v", context.Cause(ctx))
	}
	ctx, cancel = wait.Either(t.Context(), t.Context())
	cancel()
	if ctx.Err() == nil {
		t.Error("cancel does not end it")
	}
}

func TestOneHasTheTurn(t *testing.T) {
	turn := wait.NewTurn()
	if err := turn.Take(t.Context()); err != nil {
		t.Fatal(err)
	}
	why := errors.New("no time")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if err := turn.Take(ctx); err != why {
		t.Errorf("a turn that another has was taken: %v", err)
	}
	turn.Leave()
	if err := turn.Take(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestClosed(t *testing.T) {
	c := make(chan struct{})
	if wait.Closed(c) {
		t.Error("an open channel is closed")
	}
	close(c)
	if !wait.Closed(c) {
		t.Error("a closed channel is open")
	}
}

func TestOneUsesAThing(t *testing.T) {
	var u wait.InUse[string]
	if !u.TryTake("a") || u.TryTake("a") || !u.TryTake("b") {
		t.Error("each thing is one's at a time")
	}
	u.Leave("a")
	if !u.TryTake("a") || u.TryTake("b") {
		t.Error("what was left can be taken, and nothing else")
	}
}
