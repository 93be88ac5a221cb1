package oci

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster"
)

const (
	// DefaultScratch is the size of a writable layer if no disk is asked for.
	DefaultScratch = 10 * muster.GiB
	// minScratch is the smallest file system that is worth the name.
	minScratch = 1 * muster.MiB
	// templateRead is how much of a new file system is read at once: whole pages.
	templateRead = 1 << 20
	// maxTemplates bounds how many sizes are remembered.
	maxTemplates = 16
	// loopTries bounds the race for a free loop device with others on this node.
	loopTries = 200
)

// templates are new file systems, as far as they are not holes, by size: making one takes
// 4 ms and a process, writing the same bytes again a tenth of a millisecond.
type templates struct {
	mu     sync.Mutex
	bySize map[int64]*template
}

type template struct{ pieces []piece }

type piece struct {
	at   int64
	data []byte
}

func (t *templates) get(size int64) *template {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.bySize[size]
}

func (t *templates) put(size int64, made *template) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.bySize == nil || len(t.bySize) >= maxTemplates {
		t.bySize = map[int64]*template{}
	}
	t.bySize[size] = made
}

// image makes the file with a new file system of this size.
func (t *templates) image(ctx context.Context, path string, size int64) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if err := f.Truncate(size); err != nil {
		return err
	}
	if known := t.get(size); known != nil {
		for _, p := range known.pieces {
			if _, err := f.WriteAt(p.data, p.at); err != nil {
				return err
			}
		}
		return nil
	}
	if err := format(ctx, path); err != nil {
		return err
	}
	made, err := readTemplate(f, size)
	if err != nil {
		return err
	}
	t.put(size, made)
	return nil
}

// format makes a file system that is never checked or recovered: without a journal, without room kept for root.
func format(ctx context.Context, path string) error {
	cmd := exec.CommandContext(ctx, "mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal,^resize_inode",
		"-E", "lazy_itable_init=1,nodiscard", path)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin"}
	// Its output's end is seen when whoever was forked meanwhile has come to its own program: on a busy node that takes a while.
	cmd.WaitDelay = 30 * time.Second
	cmd.Path = findMkfs()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("mkfs.ext4: %w: %s", err, plain(string(out)))
	}
	return nil
}

// findMkfs looks also where root's programs are, whatever PATH this process was given.
func findMkfs() string {
	for _, dir := range []string{"/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin"} {
		path := filepath.Join(dir, "mkfs.ext4")
		if unix.Access(path, unix.X_OK) == nil {
			return path
		}
	}
	return "mkfs.ext4"
}

// readTemplate reads what of the file is not a hole.
func readTemplate(f *os.File, size int64) (*template, error) {
	t := &template{}
	buf := make([]byte, templateRead)
	for at := int64(0); at < size; {
		start, err := f.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break
		}
		if err != nil {
			return nil, err
		}
		end, err := f.Seek(start, unix.SEEK_HOLE)
		if err != nil {
			return nil, err
		}
		// Where the node's file system has no holes, this is the whole file, however large.
		for at = start; at < end; {
			data := buf[:min(end-at, templateRead)]
			if _, err := f.ReadAt(data, at); err != nil {
				return nil, err
			}
			t.add(at, data)
			at += int64(len(data))
		}
	}
	return t, nil
}

// add leaves out pages of zeros: the file system of this node may have none of its own idea of a hole.
func (t *template) add(at int64, data []byte) {
	const page = 4096
	zeros := make([]byte, page)
	for len(data) > 0 {
		n := min(page, len(data))
		if !bytes.Equal(data[:n], zeros[:n]) {
			if last := len(t.pieces) - 1; last >= 0 && t.pieces[last].at+int64(len(t.pieces[last].data)) == at {
				t.pieces[last].data = append(t.pieces[last].data, data[:n]...)
			} else {
				t.pieces = append(t.pieces, piece{at, bytes.Clone(data[:n])})
			}
		}
		at, data = at+int64(n), data[n:]
	}
}

// attachLoop gives the file a loop device, which is free again when the returned descriptor and the last mount of it are gone.
func attachLoop(path string) (device string, fd int, err error) {
	file, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(file) }()
	control, err := unix.Open("/dev/loop-control", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", -1, &os.PathError{Op: "open", Path: "/dev/loop-control", Err: err}
	}
	defer func() { _ = unix.Close(control) }()
	config := unix.LoopConfig{Fd: uint32(file), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR}}
	for range loopTries {
		n, err := unix.IoctlRetInt(control, unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return "", -1, fmt.Errorf("find a free loop device: %w", err)
		}
		device = "/dev/loop" + strconv.Itoa(n)
		fd, err := unix.Open(device, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err == unix.ENXIO || err == unix.EBUSY || err == unix.EINTR {
			continue
		}
		if err != nil {
			return "", -1, &os.PathError{Op: "open", Path: device, Err: err}
		}
		err = unix.IoctlLoopConfigure(fd, &config)
		if err == nil {
			return device, fd, nil
		}
		_ = unix.Close(fd)
		// Somebody else was quicker.
		if err != unix.EBUSY && err != unix.EINTR && err != unix.ENXIO {
			return "", -1, &os.PathError{Op: "configure", Path: device, Err: err}
		}
	}
	return "", -1, errors.New("no loop device could be had: others are always quicker")
}

// scratchUsed is what the writable layer of the sandbox of dir takes of this node's disk, and the size that it has.
func scratchUsed(dir string) (used, most muster.Bytes) {
	var st unix.Stat_t
	if unix.Lstat(filepath.Join(dir, boxName, scratchName), &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return 0, 0
	}
	return muster.Bytes(st.Blocks * 512), muster.Bytes(st.Size)
}
