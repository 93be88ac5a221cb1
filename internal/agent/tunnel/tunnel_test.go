package tunnel

import (
	"bufio"
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// wires are two unix connections with carry between them: what is written at one end comes out at
// the other.
func wires(t testing.TB) (client, server net.Conn, done <-chan struct{}) {
	t.Helper()
	pair := func(name string) (a, b net.Conn) {
		l, err := net.Listen("unix", filepath.Join(t.TempDir(), name))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		if a, err = net.Dial("unix", l.Addr().String()); err != nil {
			t.Fatal(err)
		}
		if b, err = l.Accept(); err != nil {
			t.Fatal(err)
		}
		return a, b
	}
	client, outer := pair("outer")
	inner, server := pair("inner")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		Carry(t.Context(), outer, bufio.NewReader(outer), inner)
		_, _ = outer.Close(), inner.Close()
	}()
	t.Cleanup(func() { _, _ = client.Close(), server.Close(); <-ended })
	return client, server, ended
}

// TestCarry: every byte arrives in order, whatever the sizes, both ways at once, and each way ends
// alone.
func TestCarry(t *testing.T) {
	client, server, done := wires(t)
	send := func(w net.Conn, data []byte) {
		for len(data) > 0 {
			n := min(1+rand.IntN(300<<10), len(data))
			if rand.IntN(2) == 0 {
				n = min(n, 100)
			}
			if _, err := w.Write(data[:n]); err != nil {
				t.Error(err)
				return
			}
			data = data[n:]
		}
		if err := w.(*net.UnixConn).CloseWrite(); err != nil {
			t.Error(err)
		}
	}
	up, down := make([]byte, 5<<20), make([]byte, 9<<20)
	source := rand.NewChaCha8([32]byte{1})
	_, _ = source.Read(up)
	_, _ = source.Read(down)
	var all sync.WaitGroup
	all.Go(func() { send(client, up) })
	all.Go(func() { send(server, down) })
	receive := func(r net.Conn, want []byte) {
		if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes, %v; want %d", len(got), err, len(want))
		}
	}
	all.Go(func() { receive(server, up) })
	all.Go(func() { receive(client, down) })
	all.Wait()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Error("it goes on after both ways have ended")
	}
}

// TestForward: nothing is lost of what init does not take in time, and who sends what it will never
// take is not held up.
func TestForward(t *testing.T) {
	for _, c := range []struct {
		name  string
		takes int // and then nothing; -1: it ends the connection instead
	}{{"of what came early a part", 10}, {"of the rest a part", 5000}, {"all", 300_000}, {"refused", -1}} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				body := make([]byte, 300_000)
				_, _ = rand.NewChaCha8([32]byte{2}).Read(body)
				const early = 100
				client, conn := net.Pipe()
				inside, far := net.Pipe()
				var sent sync.WaitGroup
				sent.Go(func() {
					if _, err := client.Write(body[early:]); err != nil {
						t.Error(err)
					}
					_ = client.Close()
				})
				got := make([]byte, max(c.takes, 0))
				if c.takes < 0 {
					_ = far.Close()
				} else {
					sent.Go(func() { _, _ = io.ReadFull(far, got) })
				}
				rest, whole, err := Forward(conn, body[:early], inside, int64(len(body)))
				if want := c.takes < 0 || c.takes == len(body); whole != want || (err == nil) != (c.takes == len(body)) {
					t.Errorf("whole: %v, %v", whole, err)
				}
				left, err := io.ReadAll(conn) // its deadline is over
				sent.Wait()
				if all := slices.Concat(got, rest, left); err != nil || c.takes >= 0 && !bytes.Equal(all, body) || c.takes < 0 && len(all) != 0 {
					t.Errorf("%d taken, %d and %d left of %d, %v", len(got), len(rest), len(left), len(body), err)
				}
				_, _, _ = inside.Close(), far.Close(), conn.Close()
			})
		})
	}
}

// TestBucket: it grows with what comes at once, and does not stay large for one who says little.
func TestBucket(t *testing.T) {
	var b bucket
	for _, n := range []int{10, minBucket, len(b.room()), maxBucket} {
		b.took(min(n, len(b.room())))
	}
	for range 4 {
		b.took(len(b.room()))
	}
	if len(b.room()) != maxBucket {
		t.Errorf("full %d", len(b.room()))
	}
	for range 4 * shrinkAfter {
		b.room()
		b.took(1)
	}
	if len(b.room()) != minBucket {
		t.Errorf("small again %d", len(b.room()))
	}
}

// BenchmarkCarry is bytes through a tunnel of the agent's, in frames as an upload has them.
func BenchmarkCarry(b *testing.B) {
	const size, frame = 64 << 20, 32<<10 + 5
	client, server, _ := wires(b)
	b.SetBytes(size)
	chunk := make([]byte, frame)
	sink := make([]byte, 128<<10)
	for b.Loop() {
		go func() {
			for left := size; left > 0; left -= frame {
				_, _ = client.Write(chunk[:min(left, frame)])
			}
		}()
		for got := 0; got < size; {
			n, err := server.Read(sink)
			if err != nil {
				b.Fatal(err)
			}
			got += n
		}
	}
}

// TestTunnelOfOneWhoLeft: who leaves while the sandbox takes nothing is noticed, unread bytes or
// not.
func TestTunnelOfOneWhoLeft(t *testing.T) {
	l, err := net.Listen("unix", t.TempDir()+"/s")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	client, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	here, inside := net.Pipe() // nobody reads there
	done := make(chan struct{})
	go func() {
		Carry(t.Context(), server, bufio.NewReader(server), here)
		close(done)
	}()
	_ = client.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
	for err = nil; err == nil; {
		_, err = client.Write(make([]byte, 64<<10))
	}
	_ = client.Close()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("the tunnel is still there")
	}
	_ = inside.Close()
}
