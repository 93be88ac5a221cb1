package endtoend

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/internal/agent/initbox"
	"github.com/musterhq/muster/internal/agent/journal"
	wire "github.com/musterhq/muster/internal/wire/agent"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// execs is how many commands are measured, one after the other.
const execs = 500

// BenchmarkSandboxExec is from asking for a command in a container that runs to the first byte that it
// prints. bare is `crun exec`; init asks at the socket of the container's init, node through the agent's; socket and post go
// through the server, by WebSocket and by one request that answers when the command has ended. Each connects anew.
// Targets: node p50 below 1 ms, socket and post below 1.5 ms.
func BenchmarkSandboxExec(b *testing.B) {
	b.Run("bare", func(b *testing.B) {
		x := newBare(b)
		for range b.N {
			spread(b, "first", x.execs(execs))
		}
	})
	h, image := newContainerHost(b)
	id := h.hold(contained(image, 1, "sh", "-c", "echo x; exec sleep 100000"))
	dir := h.sandbox(id)
	cl := wire.NewClient(journal.Dialer(h.instance()))
	defer cl.Close()
	ctx := b.Context()
	command := []string{"echo", "x"}
	request, err := initwire.Frame(initwire.KindExec, (&initwire.Exec{Command: command}).Fields())
	if err != nil {
		b.Fatal(err)
	}
	byInit := func(e *initwire.Execution, err error, first func()) error {
		if err != nil {
			return err
		}
		defer func() { _ = e.Close() }()
		_, data, _, err := e.Next()
		first()
		for text := string(data); ; {
			_, more, ended, nerr := e.Next()
			if text += string(more); err != nil || nerr != nil || ended != nil {
				return saysX(text, errors.Join(err, nerr))
			}
		}
	}
	for _, way := range []struct {
		name string
		one  func(first func()) error
	}{
		{"init", func(first func()) error {
			conn, err := initbox.DialInit(ctx, dir)
			if err != nil {
				return err
			}
			e, err := initwire.StartExec(ctx, conn, &initwire.Exec{Command: command})
			return byInit(e, err, first)
		}},
		{"node", func(first func()) error {
			conn, err := cl.Tunnel(ctx, id, request)
			if err != nil {
				return err
			}
			e, err := initwire.Asked(ctx, conn)
			return byInit(e, err, first)
		}},
		{"socket", func(first func()) error {
			e, err := h.cl.Exec(ctx, id, api.ExecRequest{Command: command})
			if err != nil {
				return err
			}
			defer func() { _ = e.Close() }()
			_, data, err := e.Next()
			first()
			text := string(data)
			if err == nil {
				_, err = e.Wait(io.Discard, io.Discard)
			}
			return saysX(text, err)
		}},
		{"post", func(first func()) error {
			r, err := h.cl.RunExec(ctx, id, api.ExecRequest{Command: command})
			first()
			return saysX(r.Stdout, err)
		}},
	} {
		b.Run(way.name, func(b *testing.B) {
			var all []time.Duration
			before := h.cost()
			took := time.Duration(0)
			for range b.N {
				for range execs {
					began := time.Now()
					if err := way.one(func() { all = append(all, time.Since(began)) }); err != nil {
						b.Fatal(err)
					}
					took += time.Since(began)
				}
			}
			spread(b, "first", all)
			b.ReportMetric(float64(execs*b.N)/took.Seconds(), "per-s") // one after the other, each to its end
			h.cost().sub(before).per(b, execs*b.N)
		})
	}
}

// saysX is an error unless a command printed what it should.
func saysX(text string, err error) error {
	if err == nil && text != "x\n" {
		err = fmt.Errorf("the command printed %q", text)
	}
	return err
}

// piped reads so much of a program's stdout, through a pipe.
func piped(b *testing.B, size int64, cmd *exec.Cmd) {
	b.Helper()
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		b.Fatal(err)
	}
	whole(b, size, func(w io.Writer) error { _, err := io.Copy(w, out); return err })
	if err := cmd.Wait(); err != nil {
		b.Fatalf("%v: %s", err, said.String())
	}
}

// BenchmarkSandboxStdout is what a command's stdout comes through with: init is at the socket of the container's init,
// server by WebSocket through the server. pipe is the same program
// read by this process, without anything of ours.
func BenchmarkSandboxStdout(b *testing.B) {
	const size = 512 << 20
	command := []string{"busybox", "dd", "if=/dev/zero", "bs=1M", "count=" + fmt.Sprint(size>>20)}
	h, image := newContainerHost(b)
	id := h.hold(contained(image, 1, "sh", "-c", "echo x; exec sleep 100000"))
	b.Run("pipe", func(b *testing.B) {
		b.SetBytes(size)
		for range b.N {
			piped(b, size, exec.Command(command[0], command[1:]...))
		}
	})
	b.Run("init", func(b *testing.B) {
		b.SetBytes(size)
		for range b.N {
			conn, err := initbox.DialInit(b.Context(), h.sandbox(id))
			if err != nil {
				b.Fatal(err)
			}
			e, err := initwire.StartExec(b.Context(), conn, &initwire.Exec{Command: command})
			if err != nil {
				b.Fatal(err)
			}
			whole(b, size, func(w io.Writer) error {
				for {
					stream, data, ended, err := e.Next()
					if err != nil || ended != nil {
						return err
					}
					if stream == initwire.KindStdout { // what it says of itself goes to stderr
						_, _ = w.Write(data)
					}
				}
			})
			_ = e.Close()
		}
	})
	b.Run("server", func(b *testing.B) {
		b.SetBytes(size)
		before := h.cost()
		for range b.N {
			e, err := h.cl.Exec(b.Context(), id, api.ExecRequest{Command: command})
			if err != nil {
				b.Fatal(err)
			}
			whole(b, size, func(w io.Writer) error { _, err := e.Wait(w, io.Discard); return err })
			_ = e.Close()
		}
		h.cost().sub(before).per(b, b.N*(size>>20)) // op: a MiB
	})
}

// whole reads to the end and fails unless that is so many bytes.
func whole(b *testing.B, size int64, read func(io.Writer) error) {
	b.Helper()
	var n count
	if err := read(&n); err != nil || int64(n) != size {
		b.Fatalf("%d bytes of %d: %v", n, size, err)
	}
}

type count int64

func (c *count) Write(p []byte) (int, error) {
	*c += count(len(p))
	return len(p), nil
}

// BenchmarkSandboxTar is a tree of 2,000 files and 100 MB as a tar out of a container and into it, through the server. Beside it
// tar itself, on the same kind of tree on this host's disk.
func BenchmarkSandboxTar(b *testing.B) {
	const files, each = 2000, 50_000
	h, image := newContainerHost(b)
	id := h.hold(contained(image, 1, "sh", "-c", "echo x; exec sleep 100000"))
	local := filepath.Join(h.dir, "tree")
	for i := range files {
		at := filepath.Join(local, "d"+strconv.Itoa(i%20), "f"+strconv.Itoa(i))
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			b.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(strings.Repeat("x", each)), 0o644); err != nil {
			b.Fatal(err)
		}
	}
	archive, err := exec.Command("tar", "-C", local, "-c", ".").Output()
	if err != nil {
		b.Fatal(err)
	}
	if err := h.cl.WriteArchive(b.Context(), id, client.ArchiveWrite{Path: "/tmp"}, strings.NewReader(string(archive))); err != nil {
		b.Fatal(err)
	}
	b.Run("local/down", func(b *testing.B) {
		b.SetBytes(files * each)
		for range b.N {
			out, err := exec.Command("tar", "-C", local, "-c", ".").Output()
			if err != nil || len(out) < files*each {
				b.Fatal(len(out), err)
			}
		}
	})
	ups := 0
	b.Run("local/up", func(b *testing.B) {
		b.SetBytes(files * each)
		for range b.N {
			ups++
			to := filepath.Join(h.dir, "up"+strconv.Itoa(ups))
			if err := os.Mkdir(to, 0o755); err != nil {
				b.Fatal(err)
			}
			cmd := exec.Command("tar", "-C", to, "-x")
			cmd.Stdin = strings.NewReader(string(archive))
			if err := cmd.Run(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("server/down", func(b *testing.B) {
		b.SetBytes(files * each)
		before := h.cost()
		for range b.N {
			r, err := h.cl.ReadArchive(b.Context(), id, "/tmp", true)
			if err != nil {
				b.Fatal(err)
			}
			var n count
			if _, err := io.Copy(&n, r); err != nil || n < files*each {
				b.Fatal(n, err)
			}
			_ = r.Close()
		}
		h.cost().sub(before).per(b, b.N*files*each>>20) // op: a MiB
	})
	b.Run("server/up", func(b *testing.B) {
		b.SetBytes(files * each)
		before := h.cost()
		for range b.N {
			ups++
			to := "/up" + strconv.Itoa(ups)
			if _, err := h.cl.MakeDir(b.Context(), id, client.FileWrite{Path: to}); err != nil {
				b.Fatal(err)
			}
			if err := h.cl.WriteArchive(b.Context(), id, client.ArchiveWrite{Path: to}, strings.NewReader(string(archive))); err != nil {
				b.Fatal(err)
			}
		}
		h.cost().sub(before).per(b, b.N*files*each>>20)
	})
}
