package remote

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/testwait"
)

// program is a content and where it should go.
func program(t *testing.T, size int) ([]byte, File) {
	t.Helper()
	b := make([]byte, size)
	random := rand.NewChaCha8([32]byte{})
	_, _ = random.Read(b)
	sum := sha256.Sum256(b)
	hash := hex.EncodeToString(sum[:])
	return b, File{
		Path: filepath.Join(t.TempDir(), "it's a dir", "bin", hash), SHA256: hash, Size: int64(size), Mode: 0o755,
		Open: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil },
	}
}

// inPlace checks that the file is there and nothing else is.
func inPlace(t *testing.T, f File, content []byte) {
	t.Helper()
	b, err := os.ReadFile(f.Path)
	if err != nil || !bytes.Equal(b, content) {
		t.Errorf("%d bytes are there, not %d: %v", len(b), len(content), err)
	}
	if info, err := os.Stat(f.Path); err != nil || info.Mode().Perm() != f.Mode {
		t.Errorf("%v %v", info, err)
	}
	alone(t, f, 1)
}

func alone(t *testing.T, f File, want int) {
	t.Helper()
	files, err := os.ReadDir(filepath.Dir(f.Path))
	if err != nil && !errors.Is(err, os.ErrNotExist) || len(files) != want {
		t.Errorf("%d files are there, not %d: %v %v", len(files), want, files, err)
	}
}

var posix = []string{"sh", "cat", "wc", "mkdir", "mv", "rm", "chmod", "dirname", "basename", "find", "id", "uname"}

func TestPut(t *testing.T) {
	for _, x := range []struct {
		name  string
		tools []string
	}{
		{"all tools", nil},
		{"only openssl", append([]string{"openssl"}, posix...)},
		{"no tool for hashes", posix},
	} {
		t.Run(x.name, func(t *testing.T) {
			s, c := newServer(t, false)
			if x.tools != nil {
				onPath(t, s, nil, x.tools...)
			}
			conn := dialTest(t, c)
			b, f := program(t, 3_000_001)
			if put, err := conn.Put(t.Context(), f); err != nil || !put {
				t.Fatal(put, err)
			}
			inPlace(t, f, b)

			opened := false
			again := f
			again.Open = func() (io.ReadCloser, error) { opened = true; return f.Open() }
			again.Mode = 0o700
			if put, err := conn.Put(t.Context(), again); err != nil || put || opened {
				t.Errorf("it was put once more: %v %v %v", put, opened, err)
			}
			inPlace(t, again, b)

			// Whatever else bears its name is replaced.
			for _, other := range [][]byte{nil, b[:len(b)-1], append(bytes.Clone(b[:len(b)-1]), b[len(b)-1]+1), append(bytes.Clone(b), 'x')} {
				if err := os.WriteFile(f.Path, other, 0o755); err != nil {
					t.Fatal(err)
				}
				if put, err := conn.Put(t.Context(), f); err != nil || !put {
					t.Fatal(put, err)
				}
				if err := os.Chmod(f.Path, f.Mode); err != nil {
					t.Fatal(err)
				}
				inPlace(t, f, b)
			}

			// Content that is not what was promised never gets its name.
			for _, wrong := range [][]byte{nil, b[:1000], append(bytes.Clone(b[:len(b)-1]), b[len(b)-1]+1), append(bytes.Clone(b), 'x')} {
				if err := os.RemoveAll(filepath.Dir(f.Path)); err != nil {
					t.Fatal(err)
				}
				bad := f
				bad.Open = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(wrong)), nil }
				put, err := conn.Put(t.Context(), bad)
				wantKind(t, err, muster.FaultUnavailable)
				if put {
					t.Error("it says that it was put")
				}
				alone(t, f, 0)
			}
			broken := f
			broken.Open = func() (io.ReadCloser, error) {
				return io.NopCloser(io.MultiReader(bytes.NewReader(b[:5000]), failing{})), nil
			}
			if _, err := conn.Put(t.Context(), broken); !errors.Is(err, errBroken) {
				t.Errorf("why it could not be read is not told: %v", err)
			}
			alone(t, f, 0)
		})
	}
}

var errBroken = errors.New("the disk is broken")

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errBroken }

func TestPutAtOnce(t *testing.T) {
	_, c := newServer(t, false)
	conn := dialTest(t, c)
	b, f := program(t, 500_000)
	var all sync.WaitGroup
	for range 6 {
		all.Go(func() {
			if _, err := conn.Put(t.Context(), f); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	inPlace(t, f, b)
}

// An upload that is cut off anywhere leaves nothing in place, and the next one succeeds.
func TestPutCutOff(t *testing.T) {
	s, c := newServer(t, false)
	b, f := program(t, 2_000_000)
	for _, at := range []int{0, 1, 100_000, 1_999_999} {
		conn := dialTest(t, c)
		cut := f
		cut.Open = func() (io.ReadCloser, error) {
			return io.NopCloser(io.MultiReader(bytes.NewReader(b[:at]), readerFunc(func([]byte) (int, error) {
				s.cut()
				<-conn.Done()
				return 0, io.EOF
			}))), nil
		}
		put, err := conn.Put(t.Context(), cut)
		wantKind(t, err, muster.FaultUnavailable)
		if put {
			t.Error("it says that it was put")
		}
		if _, err := os.Stat(f.Path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("cut off after %d bytes, a file is there: %v", at, err)
		}
		testwait.Until(t, "what was left to be gone", func() bool {
			files, _ := os.ReadDir(filepath.Dir(f.Path))
			return len(files) == 0
		})
	}
	if _, err := dialTest(t, c).Put(t.Context(), f); err != nil {
		t.Fatal(err)
	}
	inPlace(t, f, b)
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// The one who asks has lost patience.
func TestPutGivenUp(t *testing.T) {
	_, c := newServer(t, false)
	conn := dialTest(t, c)
	b, f := program(t, 2_000_000)
	ctx, cancel := context.WithCancel(t.Context())
	f.Open = func() (io.ReadCloser, error) {
		return io.NopCloser(io.MultiReader(bytes.NewReader(b[:1000]), readerFunc(func([]byte) (int, error) {
			cancel()
			<-ctx.Done()
			return 0, io.EOF
		}))), nil
	}
	if _, err := conn.Put(ctx, f); err == nil {
		t.Error("put, though given up")
	}
	testwait.Until(t, "what was left to be gone", func() bool {
		files, _ := os.ReadDir(filepath.Dir(f.Path))
		return len(files) == 0
	})
}

func TestPutWhereNobodyMay(t *testing.T) {
	_, c := newServer(t, false)
	conn := dialTest(t, c)
	_, f := program(t, 1000)
	f.Path = "/proc/nowhere/" + f.SHA256
	_, err := conn.Put(t.Context(), f)
	wantKind(t, err, muster.FaultUnavailable)
	if !strings.Contains(err.Error(), "/proc/nowhere") {
		t.Error(err)
	}
	for _, change := range []func(*File){
		func(f *File) { f.SHA256 = "abc" }, func(f *File) { f.SHA256 = strings.ToUpper(f.SHA256) },
		func(f *File) { f.Path = "relative" }, func(f *File) { f.Path = "/a/" }, func(f *File) { f.Open = nil },
	} {
		bad := f
		change(&bad)
		_, err := conn.Put(t.Context(), bad)
		wantKind(t, err, muster.FaultInvalid)
	}
}
