package images

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/clock"
	"github.com/musterhq/muster/internal/present"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/wait"
)

// State is the applied state.
type State interface {
	Latest() *state.Snapshot
}

// Blobs is the store of uploads. Errors are faults.
type Blobs interface {
	// PutUpload stores what r has under its digest. The content must have the digest and at most
	// limit bytes.
	PutUpload(ctx context.Context, digest string, r io.Reader, limit int64) (int64, error)
	// DropUploads deletes uploads at once, but for those that referred reports.
	DropUploads(ctx context.Context, digests []string, referred func(digest string) bool) error
	// Usage is how many bytes are stored.
	Usage() int64
}

// Config of a Service. All but those marked optional are needed.
type Config struct {
	State    State
	Proposer state.Proposer
	// Clock is the log's; nil: the system's.
	Clock clock.Clock
	Blobs Blobs
	// Quota is how many bytes the blob store should hold at most; 0: no limit.
	Quota func() int64
	// Dir is where a tar is kept while it is read, in a file without a name.
	Dir string
	// DiskLow says why nothing more may be written now, or nil. Optional.
	DiskLow func() error
	Logger  *slog.Logger // optional
}

const (
	// keepFor is how long an image is kept that nothing uses, whatever the quota, and how long the
	// version before is kept of one that was replaced.
	keepFor = 24 * time.Hour
	// maxArchive bounds a tar, plain and compressed, where there is no quota.
	maxArchive = 1 << 40
)

// Service keeps the images. Its methods may be called from any goroutine.
type Service struct {
	cfg Config
	// spools bounds the tars that are received at a time: each takes disk.
	spools chan struct{}
	// changing is held while blobs and the table of images change together: otherwise a removal
	// could delete a layer that an image needs which is being loaded.
	changing *wait.Turn
}

// spoolsAtOnce is how many tars are received at a time. Others wait.
const spoolsAtOnce = 4

// New makes a Service. It starts nothing.
func New(c Config) (*Service, error) {
	if c.State == nil || c.Proposer == nil || c.Blobs == nil || c.Quota == nil || c.Dir == "" {
		return nil, errors.New("images: state, proposer, blobs, quota and dir are needed")
	}
	if c.DiskLow == nil {
		c.DiskLow = func() error { return nil }
	}
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	return &Service{cfg: c, spools: make(chan struct{}, spoolsAtOnce), changing: wait.NewTurn()}, nil
}

// List returns all images by name.
func (s *Service) List() *api.LoadedImageList {
	return s.list(s.cfg.State.Latest(), func(*state.LoadedImage) bool { return true })
}

func (s *Service) list(snap *state.Snapshot, show func(*state.LoadedImage) bool) *api.LoadedImageList {
	images := state.LoadedImagesOf(snap)
	out := &api.LoadedImageList{Images: []api.LoadedImage{}, Limit: s.cfg.Quota()}
	users := images.Users()
	images.Each(func(im *state.LoadedImage) bool {
		if show(im) {
			out.Images = append(out.Images, present.LoadedImage(im, users[im.Name]))
		}
		return true
	})
	for _, size := range stored(images, nil) {
		out.Used += size
	}
	return out
}

// stored has the size of each blob that images keep, by digest. Of images in without, only the
// present version counts.
func stored(images state.LoadedImages, without map[string]bool) map[string]int64 {
	sizes := map[string]int64{}
	images.Each(func(im *state.LoadedImage) bool {
		for _, b := range im.Blobs {
			sizes[b.Digest] = b.Size
		}
		if !without[im.Name] {
			for _, b := range im.Replaced {
				sizes[b.Digest] = b.Size
			}
		}
		return true
	})
	return sizes
}

// Remove forgets an image and deletes what nothing else needs of it. One that a job or an
// environment uses which has not ended stays: the job would get a registry's image of that name.
func (s *Service) Remove(ctx context.Context, name string) error {
	if err := s.changing.Take(ctx); err != nil {
		return err
	}
	defer s.changing.Leave()
	images := state.LoadedImagesOf(s.cfg.State.Latest())
	im := images.Find(name)
	if im == nil {
		return problem.NotFound("image %s: is not loaded on the server", problem.Clip(name))
	}
	if j := images.Users()[im.Name]; j != nil {
		return muster.Faultf(muster.FaultConflict, "image %s: %s uses it; stop that first, or load another version under the same name", present.ImageName(im.Name), present.JobOrEnvironment(j))
	}
	return s.forget(ctx, im)
}

// forget proposes the end of an image, and deletes its blobs. The fact goes first: an image in the
// table always has its blobs. s.changing is held.
func (s *Service) forget(ctx context.Context, im *state.LoadedImage) error {
	_, was, err := state.Propose(ctx, s.cfg.Proposer, &state.ImageRemoved{Name: im.Name, Digest: im.Digest})
	if err != nil {
		return err
	}
	s.drop(ctx, slices.Concat(was.Blobs, was.Replaced))
	return nil
}

// drop deletes blobs that nothing refers to. What fails is left to the sweep of uploads.
func (s *Service) drop(ctx context.Context, blobs []state.LoadedBlob) {
	kept := state.KeptUploads(s.cfg.State.Latest(), s.cfg.Clock.Now(), keepFor)
	var digests []string
	for _, b := range blobs {
		digests = append(digests, b.Digest)
	}
	if err := s.cfg.Blobs.DropUploads(ctx, digests, func(digest string) bool { return kept[digest] }); err != nil {
		s.cfg.Logger.Warn("blobs of a removed image not deleted; they are deleted within a day", "error", err)
	}
}

// Prune removes images while the blob store is over its quota: those that nothing uses and that
// were loaded more than a day ago, the oldest first.
func (s *Service) Prune(ctx context.Context) error {
	quota := s.cfg.Quota()
	if quota <= 0 || s.cfg.Blobs.Usage() <= quota {
		return nil
	}
	if err := s.changing.Take(ctx); err != nil {
		return err
	}
	defer s.changing.Leave()
	return s.prune(ctx, func() bool { return s.cfg.Blobs.Usage() <= quota })
}

// prune removes unused images until enough says so. s.changing is held.
func (s *Service) prune(ctx context.Context, enough func() bool) error {
	for ctx.Err() == nil && !enough() {
		images := state.LoadedImagesOf(s.cfg.State.Latest())
		users, now := images.Users(), s.cfg.Clock.Now()
		var oldest *state.LoadedImage
		images.Each(func(im *state.LoadedImage) bool {
			if users[im.Name] == nil && now.Sub(im.Loaded) >= keepFor && (oldest == nil || im.Loaded < oldest.Loaded) {
				oldest = im
			}
			return true
		})
		if oldest == nil {
			return nil
		}
		if err := s.forget(ctx, oldest); err != nil {
			return fmt.Errorf("prune image %s: %w", present.ImageName(oldest.Name), err)
		}
		s.cfg.Logger.Info("unused image removed: the blob store is over its quota", "image", present.ImageName(oldest.Name), "loaded", oldest.Loaded)
	}
	return ctx.Err()
}
