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

// Programs finds muster-node for an architecture, and knows its hash. The file is
// read again when it has changed.
type Programs struct {
	// Own is that of this host's architecture.
	Own string
	// Dirs are looked through for muster-node-linux-ARCH, the first that has it counts.
	Dirs []string

	mu    sync.Mutex
	known map[string]program // by path
}

type program struct {
	size     int64
	modified time.Time
	sum      string
}

const programMode = 0o755

// Find is muster-node for hosts of an architecture, as a file to be put below dir.
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
	return "", muster.Faultf(muster.FaultInvalid, "there is no %s in %q: put muster-node for that architecture there (node_binaries)", name, p.Dirs)
}

// hash reads a file unless it is known as it is now.
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
