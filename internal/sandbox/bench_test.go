package sandbox

import (
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/musterhq/muster/internal/sandbox/system"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// BenchmarkExec measures from asking for an execution to its first byte, over the socket. Beside it a plain
// fork and exec of the same program.
func BenchmarkExec(b *testing.B) {
	command := []string{"/bin/echo", "x"}
	quantiles := func(b *testing.B, one func()) {
		var took []time.Duration
		for b.Loop() {
			began := time.Now()
			one()
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
		b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
	}
	b.Run("bare", func(b *testing.B) {
		buf := make([]byte, 10)
		quantiles(b, func() {
			r, w, err := system.Pipe()
			must(b, err)
			must(b, syscall.SetNonblock(r, false))
			pid, err := syscall.ForkExec(command[0], command, &syscall.ProcAttr{Files: []uintptr{0, uintptr(w), 2}})
			must(b, err)
			_ = syscall.Close(w)
			if n, err := syscall.Read(r, buf); n != 2 || err != nil {
				b.Fatal(n, err)
			}
			_ = syscall.Close(r)
			_, err = syscall.Wait4(pid, nil, 0, nil)
			must(b, err)
		})
	})
	b.Run("exec", func(b *testing.B) {
		box := plain(b)
		quantiles(b, func() {
			x := box.exec(&initwire.Exec{Command: command})
			if _, data, _, err := x.Next(); err != nil || string(data) != "x\n" {
				b.Fatal(err, string(data))
			}
			go func() { _, _ = listen(x) }()
		})
	})
	b.Run("whole", func(b *testing.B) {
		box := plain(b)
		quantiles(b, func() { box.all(&initwire.Exec{Command: command}) })
	})
	for _, others := range []int{200} {
		b.Run(fmt.Sprintf("exec/others=%d", others), func(b *testing.B) {
			box := plain(b)
			for range others {
				defer func(x *initwire.Execution) { _ = x.Close() }(box.exec(&initwire.Exec{Command: []string{"sleep", "100000"}}))
			}
			quantiles(b, func() { box.all(&initwire.Exec{Command: command}) })
		})
	}
}

// BenchmarkExecStream measures bytes out of a program, and through one, over the socket.
func BenchmarkExecStream(b *testing.B) {
	const size = 100_000_000
	b.Run("out", func(b *testing.B) {
		b.SetBytes(size)
		box := plain(b)
		for b.Loop() {
			drain(b, box.exec(&initwire.Exec{Command: []string{"head", "-c", fmt.Sprint(size), "/dev/zero"}}), size)
		}
	})
	b.Run("detached", func(b *testing.B) {
		const size = 50_000_000
		b.SetBytes(size)
		box := plain(b)
		for b.Loop() {
			drain(b, box.exec(&initwire.Exec{Detached: true, Command: []string{"head", "-c", fmt.Sprint(size), "/dev/zero"}}), size)
		}
	})
	b.Run("through", func(b *testing.B) {
		b.SetBytes(size)
		box := plain(b)
		block := make([]byte, 1<<20)
		for b.Loop() {
			x := box.exec(&initwire.Exec{Command: []string{"cat"}, Stdin: true})
			var sending sync.WaitGroup
			sending.Go(func() {
				for left := size; left > 0; left -= len(block) {
					if x.WriteStdin(block[:min(left, len(block))]) != nil {
						return
					}
				}
				_ = x.CloseStdin()
			})
			drain(b, x, size)
			sending.Wait()
		}
	})
}

func drain(b *testing.B, x *initwire.Execution, want int) {
	b.Helper()
	for got := 0; ; {
		_, data, ended, err := x.Next()
		must(b, err)
		got += len(data)
		if ended != nil {
			if got != want {
				b.Fatalf("%d bytes of %d", got, want)
			}
			_ = x.Close()
			return
		}
	}
}
