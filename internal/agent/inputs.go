package agent

import (
	"bytes"
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
	defaultGiveUp    = time.Hour
	defaultInputMode = 0o644
	// inputTmp is the prefix of an input's name while it is being written.
	inputTmp = ".muster-input-"
	// inputsTogether is how many times the size limit of one input all inputs of an allocation may have together.
	inputsTogether = 16
)

// fetchInputs puts the inputs into the work directory. When the allocation is
// to stop or the agent ends it returns early, without a failure: whoever calls looks at that next.
func (a *Agent) fetchInputs(ctx context.Context, al *alloc) *muster.Failure {
	ctx, cancel := al.untilStop(ctx)
	defer cancel()
	if err := al.makeWork(); err != nil {
		return contract.Failure(muster.FailureNode, muster.ReasonNodeFault, "work directory: %v", err)
	}
	work, err := os.OpenRoot(al.work())
	if errors.Is(err, fs.ErrNotExist) {
		return contract.Failure(muster.FailureUser, muster.ReasonNoWorkdir, "work directory %s does not exist", al.work())
	}
	if err != nil {
		return contract.FileFailure(muster.ReasonNoWorkdir, "work directory", err)
	}
	defer func() { _ = work.Close() }()
	giveUp := millis(al.spec.GiveUpInputMillis)
	if giveUp == 0 {
		giveUp = defaultGiveUp
	}
	waitCtx, cancelWait := context.WithTimeoutCause(ctx, giveUp, errGaveUp)
	defer cancelWait()
	left := a.inputs.most * inputsTogether
	for i, in := range al.spec.Inputs {
		if f := a.fetchInput(ctx, waitCtx, work, in, &left, fmt.Sprint(inputTmp, al.id, "-", i)); f != nil || ctx.Err() != nil {
			return f
		}
	}
	return nil
}

var errGaveUp = errors.New("gave up")

// fetchInput puts one input into place; waitCtx ends the waiting for it. left is how many bytes the allocation's inputs may
// still have: an input that is larger is not copied.
func (a *Agent) fetchInput(ctx, waitCtx context.Context, work *os.Root, in wire.Input, left *int64, tmp string) *muster.Failure {
	take := func(size int64) *muster.Failure {
		if size > *left {
			return contract.Failure(muster.FailureUser, muster.ReasonInput,
				"input %s: the inputs of the job are larger than %s together, the most on this node (%d times input_limit of the pool)",
				in.Path, muster.Bytes(a.inputs.most*inputsTogether), inputsTogether)
		}
		*left -= size
		return nil
	}
	if in.Digest == "" {
		if f := take(int64(len(in.Content))); f != nil {
			return f
		}
		return placeInput(ctx, work, in, tmp, bytes.NewReader(in.Content))
	}
	path, release, f := a.inputs.get(waitCtx, in.Digest, in.URL)
	if f != nil || path == "" {
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
	if f := take(info.Size()); f != nil {
		return f
	}
	return placeInput(ctx, work, in, tmp, src)
}

// placeInput copies an input into the work directory. It goes through a
// name of its own first: a work directory that the job brings may be in use by others.
func placeInput(ctx context.Context, work *os.Root, in wire.Input, tmp string, src io.Reader) *muster.Failure {
	mode := fs.FileMode(in.Mode) & fs.ModePerm
	if mode == 0 {
		mode = defaultInputMode
	}
	name := filepath.Clean(in.Path)
	dir := filepath.Dir(name)
	tmp = filepath.Join(dir, tmp)
	err := work.MkdirAll(dir, 0o755)
	if err == nil {
		err = writeInput(ctx, work, tmp, mode, src)
	}
	if err == nil {
		err = work.Rename(tmp, name)
	}
	if err != nil {
		_ = work.Remove(tmp)
		if ctx.Err() != nil {
			return nil
		}
		return contract.FileFailure(muster.ReasonInput, "input "+in.Path, err)
	}
	return nil
}

func writeInput(ctx context.Context, work *os.Root, name string, mode fs.FileMode, src io.Reader) error {
	_ = work.Remove(name) // of an agent that ended in the middle
	f, err := work.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = copyUntil(ctx, f, src)
	if err == nil {
		err = f.Chmod(mode) // whatever the umask
	}
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}

// copyUntil copies in large pieces, which lets the kernel share blocks between
// files, and stops between two of them when ctx ends.
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
