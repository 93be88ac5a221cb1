package oci

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	initwire "github.com/musterhq/muster/internal/wire/init"
)

// Each living sandbox has ids of its own on the node: who comes out of one sandbox is nobody to the files and the processes
// of another, and what the kernel counts per user is counted per sandbox. The layers of images, which all share, belong
// to Config.IDBase; a sandbox sees them through a mount that maps their owners to its own. Agents of the same host
// begin at different blocks of the ranges, and come to others only when theirs is full.
const (
	// From the usual first id on, 28992 << 16, all of them end below 2^31: programs of 32 bits take what is above for negative.
	idBlocks    = 14
	blockRanges = 256
	allRanges   = idBlocks * blockRanges
)

// ids are what a sandbox has of the node's uids and gids.
type ids struct {
	// base is the first of them; 0: it has no user namespace.
	base int
	// layers maps the owners of image layers to base; nil: the layers belong to base. shared maps root's files to base.
	layers, shared *os.File
}

// ranges hands out ids to sandboxes.
type ranges struct {
	program string // for openOwners
	layers  int    // whose the layers are: the first id. Ranges follow.
	first   int    // where the search for a free one begins

	mu sync.Mutex
	// used has the directories of sandboxes that have a range: what is said of one that is gone must not free its successor's.
	used [allRanges]string
	// known are the user namespaces of ranges that were opened: those used before, and some to come.
	known   map[int]ids
	opening map[int]*opening
}

func newRanges(program string, layers, block int) *ranges {
	return &ranges{program: program, layers: layers, first: (block%idBlocks + idBlocks) % idBlocks * blockRanges,
		known: map[int]ids{}, opening: map[int]*opening{}}
}

func (r *ranges) base(i int) int { return r.layers + (1+i)*idRange }

// index is the number of a range; false if it is none of these.
func (r *ranges) index(base int) (int, bool) {
	i := (base-r.layers)/idRange - 1
	return i, base > r.layers && i >= 0 && i < allRanges
}

// take gives a range to the sandbox of a directory until it is released.
func (r *ranges) take(dir string) (ids, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := r.first
	for r.used[i] != "" {
		if i = (i + 1) % allRanges; i == r.first {
			return ids{}, fmt.Errorf("all %d ranges of user ids are in use", allRanges)
		}
	}
	r.used[i] = dir
	for r.known[i].layers == nil {
		var err error
		if o := r.opening[i]; o != nil {
			r.mu.Unlock()
			<-o.done
			r.mu.Lock()
			err = o.err
		} else {
			err = r.openLocked(i)
		}
		if err != nil {
			r.used[i] = ""
			return ids{}, err
		}
	}
	return r.known[i], nil
}

// maxOpened is how many ranges are opened at once at most.
const maxOpened = 16

// opening is ranges whose user namespaces are being opened.
type opening struct {
	done chan struct{}
	err  error
}

// openLocked opens a range, and as many of those after it as were known before: a node that has needed many soon needs
// more, and the program that opens them is started once for all. mu is not held meanwhile.
func (r *ranges) openLocked(first int) error {
	batch := []int{first}
	for n := 1; n < min(len(r.known), maxOpened); n++ {
		i := (first + n) % allRanges
		if r.opening[i] == nil && r.known[i].layers == nil {
			batch = append(batch, i)
		}
	}
	o := &opening{done: make(chan struct{})}
	for _, i := range batch {
		r.opening[i] = o
	}
	r.mu.Unlock()
	opened, err := r.open(batch)
	if err != nil && len(batch) > 1 {
		// Limits of the kernel or of this process may leave room for the one that is needed now.
		opened, err = r.open(batch[:1])
	}
	r.mu.Lock()
	for k, i := range batch {
		delete(r.opening, i)
		if k < len(opened) {
			r.known[i] = opened[k]
		}
	}
	o.err = err
	close(o.done)
	return err
}

// open opens the user namespaces of ranges.
func (r *ranges) open(batch []int) ([]ids, error) {
	var maps [][]initwire.IDRange
	for _, i := range batch {
		base := r.base(i)
		// The node's root stays itself: the directory of the layers is its, and closed to others.
		layers := []initwire.IDRange{{Inside: r.layers, Outside: base, Size: idRange}, {Inside: 0, Outside: 0, Size: 1}}
		maps = append(maps, layers, rootIs(base))
	}
	files, err := openOwners(r.program, maps...)
	if err != nil {
		return nil, err
	}
	opened := make([]ids, len(batch))
	for k, i := range batch {
		opened[k] = ids{base: r.base(i), layers: files[2*k], shared: files[2*k+1]}
	}
	return opened, nil
}

// hold says that a sandbox that was found has a range.
func (r *ranges) hold(dir string, base int) {
	if i, ok := r.index(base); ok {
		r.mu.Lock()
		r.used[i] = dir
		r.mu.Unlock()
	}
}

// release says that nothing of a sandbox lives any more.
func (r *ranges) release(dir string, base int) {
	if i, ok := r.index(base); ok {
		r.mu.Lock()
		if r.used[i] == dir {
			r.used[i] = ""
		}
		r.mu.Unlock()
	}
}

// try looks whether ranges work where images are kept: whether the kernel maps owners there, and lays a writable
// layer over the result. Both are needed of the kernel (5.19) and of the file system.
func (r *ranges) try(images string, places []string) (err error) {
	if err := os.MkdirAll(images, 0o755); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(images, ".owners-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := os.Mkdir(filepath.Join(dir, "layer"), 0o755); err != nil {
		return err
	}
	if err := os.Chown(filepath.Join(dir, "layer"), r.layers, r.layers); err != nil {
		return err
	}
	own, err := r.take(dir)
	if err != nil {
		return err
	}
	defer r.release(dir, own.base)
	place := places[0]
	for _, p := range places {
		if rel, err := filepath.Rel(p, images); err != nil || !filepath.IsLocal(rel) {
			place = p
			break
		}
	}
	onDyingThread(func() { err = tryOwners(dir, place, own) })
	return err
}

// tryOwners is all of try that happens in a mount namespace of its own.
func tryOwners(dir, place string, own ids) error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	// The tree is opened by a name that the stage may cover.
	if err := unix.Chdir(dir); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", place, "tmpfs", unix.MS_NODEV|unix.MS_NOSUID, stageSize); err != nil {
		return &os.PathError{Op: "mount tmpfs on", Path: place, Err: err}
	}
	at := func(name string) string { return filepath.Join(place, name) }
	for _, name := range []string{"layers", "upper", "work", "root"} {
		if err := os.Mkdir(at(name), 0o755); err != nil {
			return err
		}
	}
	if err := bindOwned(".", at("layers"), own.layers); err != nil {
		return err
	}
	options := "lowerdir=" + at("layers/layer") + ",upperdir=" + at("upper") + ",workdir=" + at("work")
	if err := unix.Mount("overlay", at("root"), "overlay", unix.MS_NODEV, options); err != nil {
		return &os.PathError{Op: "mount overlay over mapped owners on", Path: at("root"), Err: err}
	}
	var st unix.Stat_t
	if err := unix.Stat(at("layers/layer"), &st); err != nil {
		return err
	}
	if int(st.Uid) != own.base || int(st.Gid) != own.base {
		return errors.New("the kernel does not map owners")
	}
	return nil
}
