package reach

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/remote"
)

// Programs finds the muster-node program for an architecture and its hash. It reads a file again
// when the file has changed. Its methods may be called concurrently.
type Programs struct {
	// Own is the path of the program for this host's architecture.
	Own string
	// Dirs are searched in order for muster-node-linux-ARCH. They come before Own.
	Dirs []string

	// mu guards known, the files by path. It is not held while a file is read.
	mu    sync.Mutex
	known map[string]program // by path
}

// program is a file as it was when it was read. sum is its SHA-256 in hex.
type program struct {
	size     int64
	modified time.Time
	sum      string
}

// programMode is the file mode of the program on a host.
const programMode = 0o755

// Find returns muster-node for hosts of an architecture, as a file to put below dir. The hash is in
// the file's name, so several versions can lie there side by side, and a running one is never
// overwritten. FaultInvalid means that there is none for the architecture.
func (p *Programs) Find(arch, dir string) (remote.File, error) {
	path, err := p.path(arch)
	if err != nil {
		return remote.File{}, err
	}
	k, err := p.hash(path)
	if err != nil {
		return remote.File{}, fmt.Errorf("muster-node for %s: %w", arch, err)
	}
	return remote.File{
		Path: filepath.Join(dir, "bin", "muster-node-"+k.sum), SHA256: k.sum, Size: k.size, Mode: programMode, Root: true,
		Open: func() (io.ReadCloser, error) { return os.Open(path) },
	}, nil
}

// path returns the path of the program on this host.
func (p *Programs) path(arch string) (string, error) {
	name := "muster-node-linux-" + arch
	for _, dir := range p.Dirs {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, nil
		} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	if arch == runtime.GOARCH && p.Own != "" {
		return p.Own, nil
	}
	return "", muster.Faultf(muster.FaultInvalid, "there is no %s in %q: put muster-node for that architecture there (node_binaries; packages of Muster have it, and `make nodes` builds it)", name, p.Dirs)
}

// hash returns the hash of a file. It reads the file only if its size or time has changed.
func (p *Programs) hash(path string) (program, error) {
	info, err := os.Stat(path)
	if err != nil {
		return program{}, err
	}
	p.mu.Lock()
	k, ok := p.known[path]
	p.mu.Unlock()
	if ok && k.size == info.Size() && k.modified.Equal(info.ModTime()) {
		return k, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return program{}, err
	}
	defer func() { _ = f.Close() }()
	sum := sha256.New()
	n, err := io.Copy(sum, f)
	if err != nil {
		return program{}, err
	}
	k = program{size: n, modified: info.ModTime(), sum: hex.EncodeToString(sum.Sum(nil))}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known == nil {
		p.known = map[string]program{}
	}
	p.known[path] = k
	return k, nil
}
