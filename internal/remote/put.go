package remote

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/musterhq/muster"
)

// File is one to put on a host.
type File struct {
	// Path where it goes; its directory is made if it is not there. It should be named by the hash, so that nothing else is ever there.
	Path string
	// SHA256 of the content in hexadecimal, and its size.
	SHA256 string
	Size   int64
	Mode   fs.FileMode
	// Open gives the content; it is called only when the file is not there yet.
	Open func() (io.ReadCloser, error)
	// Root: it is to be root's.
	Root bool
}

const (
	// slowest is the rate below which an upload is given up, in bytes per second.
	slowest = 64 << 10
	// Exit statuses of the scripts below.
	exitAbsent  = 3
	exitDiffers = 65
	unverified  = "unverified"
	sumOfStdin  = `if command -v sha256sum >/dev/null 2>&1; then sha256sum; elif command -v shasum >/dev/null 2>&1; then shasum -a 256; elif command -v openssl >/dev/null 2>&1; then openssl dgst -sha256 -r; else echo none; fi`
	lookScript  = `test -f "$1" || exit 3; h=$({ ` + sumOfStdin + `; } < "$1") || exit; case "$h" in none|"$3"*) chmod "$2" "$1" || exit;; esac; echo "$h"`
	readScript  = `test "$(wc -c < "$1")" -eq "$2" && cat "$1"`
	// When the connection goes, writing to it must not end the script before it has cleaned up: hence no SIGPIPE.
	uploadScript = `umask 022; mkdir -p "$(dirname "$1")" || exit; t="$1.$4.part"; clean() { rm -f "$t"; }; trap clean EXIT; trap "exit 1" HUP INT TERM; trap "" PIPE; umask 077; ` +
		`cat > "$t" || exit; n=$(wc -c < "$t"); if [ "$n" -ne "$2" ]; then echo "$n of $2 bytes arrived" >&2; exit 65; fi; ` +
		`h=$({ ` + sumOfStdin + `; } < "$t") || exit; chmod "$5" "$t" || exit; ` +
		`case "$h" in none) trap - EXIT; echo ` + unverified + `; exit 0;; "$3"*) ;; *) echo "what arrived has another sha256: $h" >&2; exit 65;; esac; mv -f "$t" "$1" || exit; ` +
		// What uploads that were cut off more than an hour ago may have left.
		`find "$(dirname "$1")" -maxdepth 1 -name "$(basename "$1").*.part" -mmin +60 -exec rm -f "{}" ";" >/dev/null 2>&1; exit 0`
)

// Put puts a file in its place, whole or not at all: it is uploaded under another name, its hash
// is looked at on the far side, and only then it gets its name. One that is there already with the same content is left alone: then
// put is false. Safe to repeat, and by several at once.
func (c *Conn) Put(ctx context.Context, f File) (put bool, err error) {
	if err := f.check(); err != nil {
		return false, err
	}
	defer func() {
		if err != nil {
			// That something of it may have happened does not matter: it can be done again.
			var fault *muster.Fault
			if errors.As(err, &fault) && fault.Kind == muster.FaultAmbiguous {
				err = &muster.Fault{Kind: muster.FaultUnavailable, Err: err}
			}
			err = fmt.Errorf("put %s on host %s: %w", f.Path, c.config.Address, err)
		}
	}()
	limit := c.config.CommandLimit + time.Duration(f.Size/slowest)*time.Second
	same, err := c.hasFile(ctx, f, f.Path, limit)
	if err != nil || same {
		return false, err
	}
	content, err := f.Open()
	if err != nil {
		return false, err
	}
	defer func() { _ = content.Close() }()
	random := make([]byte, 8)
	if _, err := rand.Read(random); err != nil {
		return false, err
	}
	from := &reading{r: content}
	token := hex.EncodeToString(random)
	r, err := c.Run(ctx, Command{
		Script: uploadScript, Purpose: "upload " + f.Path, Args: []string{f.Path, strconv.FormatInt(f.Size, 10), f.SHA256, token, f.mode()},
		Stdin: from, Root: f.Root, Limit: limit, gentle: true,
	})
	switch {
	case err != nil:
		return false, errors.Join(err, from.failure())
	case r.Exit == exitDiffers:
		return false, &muster.Fault{Kind: muster.FaultUnavailable, Message: r.Failure(), Err: from.failure()}
	case r.Exit != 0:
		return false, muster.Faultf(muster.FaultUnavailable, "%s", r.Failure())
	}
	if strings.Contains(string(r.Stdout), unverified) {
		if err := c.settle(ctx, f, f.Path+"."+token+".part", limit); err != nil {
			return false, err
		}
	}
	return true, nil
}

// Has is true when the file is in its place with the same content; it has the right mode then.
func (c *Conn) Has(ctx context.Context, f File) (bool, error) {
	if err := f.check(); err != nil {
		return false, err
	}
	return c.hasFile(ctx, f, f.Path, c.config.CommandLimit)
}

func (f File) check() error {
	sum, err := hex.DecodeString(f.SHA256)
	if err != nil || len(sum) != sha256.Size || strings.ToLower(f.SHA256) != f.SHA256 {
		return muster.Faultf(muster.FaultInvalid, "file %s: sha256 %q: 64 hexadecimal digits are needed", f.Path, f.SHA256)
	}
	if !strings.HasPrefix(f.Path, "/") || strings.HasSuffix(f.Path, "/") || strings.ContainsAny(f.Path, "\n\x00") || f.Size < 0 || f.Open == nil {
		return muster.Faultf(muster.FaultInvalid, "file %q: an absolute path, a size and a content are needed", f.Path)
	}
	return nil
}

func (f File) mode() string { return fmt.Sprintf("%04o", f.Mode.Perm()) }

// hasFile is true when a file of this content is at path, and has the right mode then.
func (c *Conn) hasFile(ctx context.Context, f File, path string, limit time.Duration) (bool, error) {
	r, err := c.Run(ctx, Command{Script: lookScript, Purpose: "look for " + path, Args: []string{path, f.mode(), f.SHA256}, Root: f.Root, Limit: limit})
	if err != nil {
		return false, err
	}
	if r.Exit == exitAbsent {
		return false, nil
	}
	if r.Exit != 0 {
		return false, muster.Faultf(muster.FaultUnavailable, "look at what is there: %s", r.Failure())
	}
	answer := lastLine(r.Stdout)
	if answer != "none" {
		return strings.HasPrefix(answer, f.SHA256), nil
	}
	// The host has no program for it: the hash is made here, of what it sends.
	sum := &summed{hash: sha256.New()}
	r, err = c.Run(ctx, Command{Script: readScript, Purpose: "read " + path, Args: []string{path, strconv.FormatInt(f.Size, 10)}, Root: f.Root, Limit: limit, stdout: sum})
	return err == nil && r.Exit == 0 && sum.String() == f.SHA256, err
}

// settle gives an upload its name on a host that cannot verify it itself.
func (c *Conn) settle(ctx context.Context, f File, part string, limit time.Duration) error {
	same, err := c.hasFile(ctx, f, part, limit)
	if err != nil {
		return err
	}
	last := Command{Args: []string{"mv", "-f", part, f.Path}, Root: f.Root}
	if !same {
		last.Args = []string{"rm", "-f", part}
	}
	r, err := c.Run(ctx, last)
	if err == nil && r.Exit != 0 {
		err = muster.Faultf(muster.FaultUnavailable, "%s", r.Failure())
	}
	if err == nil && !same {
		err = muster.Faultf(muster.FaultUnavailable, "what arrived is not what was sent")
	}
	return err
}

// reading remembers why its reader failed: the far side only sees that it ended.
type reading struct {
	r      io.Reader
	failed atomic.Pointer[error]
}

func (r *reading) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		r.failed.Store(&err)
	}
	return n, err
}

func (r *reading) failure() error {
	if err := r.failed.Load(); err != nil {
		return fmt.Errorf("read what is to be put: %w", *err)
	}
	return nil
}

// summed is the hash of what is written to it.
type summed struct {
	mu   sync.Mutex // a host may send on when it has said that it is done
	hash hash.Hash
}

func (s *summed) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hash.Write(p)
}

func (s *summed) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return hex.EncodeToString(s.hash.Sum(nil))
}
