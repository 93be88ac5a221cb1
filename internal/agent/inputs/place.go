package inputs

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

const (
	// defaultGiveUp is how long inputs are waited for where the job does not say.
	defaultGiveUp = time.Hour
	// defaultMode is the mode of an input that gives none.
	defaultMode = 0o644
	// tempPrefix begins the name of an input while it is being written.
	tempPrefix = ".muster-input-"
	// Together is how many times the size limit of one input all inputs of an allocation may have
	// together.
	Together = 16
)

// errGaveUp is the cause of a context that ended because inputs were waited for too long. A context
// that ended otherwise means that the allocation is to stop.
var errGaveUp = errors.New("gave up")

// Placement is what to place for one allocation.
type Placement struct {
	// Alloc is in the names of files that are being written.
	Alloc muster.AllocID
	// Work is the directory in which they are placed. It must exist.
	Work   string
	Inputs []wire.Input
	// GiveUp is how long to wait for inputs that do not come; 0: an hour.
	GiveUp time.Duration
}

// Place puts the inputs into the work directory. When ctx ends it returns early, perhaps without a
// failure: the caller looks at ctx next. A failure says which input is wrong.
func (s *Cache) Place(ctx context.Context, p Placement) *muster.Failure {
	work, err := os.OpenRoot(p.Work)
	if errors.Is(err, fs.ErrNotExist) {
		return contract.Failure(muster.FailureUser, muster.ReasonNoWorkdir, "work directory %s does not exist", p.Work)
	}
	if err != nil {
		return contract.FileFailure(muster.ReasonNoWorkdir, "work directory", err)
	}
	defer func() { _ = work.Close() }()
	giveUp := p.GiveUp
	giveUp = cmp.Or(giveUp, defaultGiveUp)
	waitCtx, cancel := context.WithTimeoutCause(ctx, giveUp, errGaveUp)
	defer cancel()
	to := &placing{cache: s, work: work, left: s.cfg.Most * Together}
	for i, in := range p.Inputs {
		if f := to.one(ctx, waitCtx, in, fmt.Sprint(tempPrefix, p.Alloc, "-", i)); f != nil || ctx.Err() != nil {
			return f
		}
	}
	return nil
}

// placing is one call of Place.
type placing struct {
	cache *Cache
	work  *os.Root
	// left is how many bytes the inputs may still have together.
	left int64
}

// one puts an input into place; waitCtx ends the waiting for it, temp is its name meanwhile.
func (p *placing) one(ctx, waitCtx context.Context, in wire.Input, temp string) *muster.Failure {
	// Small inputs travel in the spec, without a digest.
	if in.Digest == "" {
		if f := p.count(in, int64(len(in.Content))); f != nil {
			return f
		}
		return place(ctx, p.work, in, temp, bytes.NewReader(in.Content))
	}
	path, release, f := p.cache.get(waitCtx, in.Digest, in.URL)
	if f != nil || path == "" {
		// With neither, ctx has ended.
		if f != nil {
			f.Message = "input " + in.Path + ": " + f.Message
		}
		return f
	}
	defer release()
	src, err := os.Open(path)
	if err != nil {
		return contract.Failure(muster.FailureNode, muster.ReasonNodeFault, "input %s: %v", in.Path, err)
	}
	defer func() { _ = src.Close() }()
	info, err := src.Stat()
	if err != nil {
		return contract.Failure(muster.FailureNode, muster.ReasonNodeFault, "input %s: %v", in.Path, err)
	}
	if f := p.count(in, info.Size()); f != nil {
		return f
	}
	return place(ctx, p.work, in, temp, src)
}

// count takes the size of an input off what is left. An input that is larger is not copied.
func (p *placing) count(in wire.Input, size int64) *muster.Failure {
	if size > p.left {
		return contract.Failure(muster.FailureUser, muster.ReasonInput,
			"input %s: the inputs of the job are larger than %s together, the most on this node (%d times input_limit of the pool)",
			in.Path, muster.Bytes(p.cache.cfg.Most*Together), Together)
	}
	p.left -= size
	return nil
}

// place copies an input into the work directory. The file has a name of its own first: other
// commands may use a work directory that the job brings.
func place(ctx context.Context, work *os.Root, in wire.Input, temp string, src io.Reader) *muster.Failure {
	mode := fs.FileMode(in.Mode) & fs.ModePerm
	mode = cmp.Or(mode, defaultMode)
	name := filepath.Clean(in.Path)
	dir := filepath.Dir(name)
	temp = filepath.Join(dir, temp)
	err := work.MkdirAll(dir, 0o755)
	if err == nil {
		err = write(ctx, work, temp, mode, src)
	}
	if err == nil {
		err = work.Rename(temp, name)
	}
	if err != nil {
		_ = work.Remove(temp)
		if ctx.Err() != nil {
			// The copy was broken off, which is nobody's failure.
			return nil
		}
		return contract.FileFailure(muster.ReasonInput, "input "+in.Path, err)
	}
	return nil
}

// write makes a new file with all bytes of src.
func write(ctx context.Context, work *os.Root, name string, mode fs.FileMode, src io.Reader) error {
	_ = work.Remove(name) // an agent that ended in the middle may have left it
	f, err := work.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = copyUntil(ctx, f, src)
	if err == nil {
		err = f.Chmod(mode) // the umask does not count
	}
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}

// copyUntil copies in large pieces, which lets the kernel share blocks between files, and stops
// between two of them when ctx ends.
func copyUntil(ctx context.Context, dst *os.File, src io.Reader) (int64, error) {
	const piece = 16 << 20
	var total int64
	for {
		if err := ctx.Err(); err != nil {
			return total, err
		}
		n, err := io.CopyN(dst, src, piece)
		total += n
		if err == io.EOF {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}
