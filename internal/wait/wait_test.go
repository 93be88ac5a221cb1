package wait_test

import (
	"context"
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
