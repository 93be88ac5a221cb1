package contract

import (
	"context"
	"fmt"

	"github.com/musterhq/muster"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// Images is the node's store of images. All methods may be called at once. Errors are
// *muster.Failure: class user for an image that does not exist or cannot be used here, outside for
// a registry out of order, node for this machine.
type Images interface {
	// Open brings an image here unless it is here and the puller may use it, and keeps it until its
	// Release. It calls tell with the progress, from one goroutine at a time.
	Open(ctx context.Context, ref string, by wire.Puller, tell func(ImageProgress)) (*Image, error)
	// Pull is Open that asks the registry in any case what a tag means now.
	Pull(ctx context.Context, ref string, by wire.Puller, tell func(ImageProgress)) (*Image, error)
	// Hold keeps an image for a sandbox that an earlier agent started from it.
	Hold(digest string) (*Image, error)
	// List tells what is here.
	List() wire.ImageList
	// Prune deletes what nothing uses; with all also what was used lately. It returns how many
	// bytes are free again.
	Prune(ctx context.Context, all bool) (freed muster.Bytes, err error)
}

// Image is an image on this node, unpacked.
type Image struct {
	// Ref is the reference that was asked for; Digest is what it meant, "sha256:" and 64 digits.
	Ref, Digest string
	// Root is a directory below which Layers lie, the topmost first, relative to it: the names are
	// short enough for all to fit into one mount option.
	Root   string
	Layers []string
	Config ImageConfig
	// Release lets the node delete the image; nil if nothing is held. It is called once.
	Release func()
}

// Free calls Release if there is one. It may be called for no image.
func (i *Image) Free() {
	if i != nil && i.Release != nil {
		i.Release()
	}
}

// ImageConfig is what an image says of how it wants to be run.
type ImageConfig struct {
	Entrypoint, Cmd, Env, Volumes []string
	User, Workdir                 string
	// StopSignal is a name (SIGTERM, TERM) or a number; empty: TERM.
	StopSignal string
}

// ImageProgress is how far a pull has come. Bytes are those that travel; 0 of 0 before the total is
// known.
type ImageProgress struct {
	Done, Total        int64
	Layers, LayersDone int
}

// String is the progress as a user reads it.
func (p ImageProgress) String() string {
	if p.Total == 0 {
		return "asking for it"
	}
	return fmt.Sprintf("%s of %s, %d of %d layers", muster.Bytes(p.Done), muster.Bytes(p.Total), p.LayersDone, p.Layers)
}
