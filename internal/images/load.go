package images

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/agent/images/source"
	"github.com/musterhq/muster/internal/present"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/state"
)

// Request says how to read a tar.
type Request struct {
	// Name is the name that the image gets; empty: the names that the tar gives its images.
	Name string
	// Rootfs: it is the tar of a root file system, which becomes an image of one layer.
	Rootfs bool
	// Platform is of a root file system, as linux/arm64; empty: that of the server.
	Platform string
}

// Load reads a tar and stores the images in it. length is how many bytes the client says that it
// has, or -1. The images that it has loaded are returned.
func (s *Service) Load(ctx context.Context, q Request, length int64, body io.Reader) (*api.LoadedImageList, error) {
	name, of, err := q.check()
	if err != nil {
		return nil, err
	}
	most := s.cfg.Quota()
	if most <= 0 || most > maxArchive {
		most = maxArchive
	}
	if length > most {
		return nil, tooLarge(most)
	}
	select {
	case s.spools <- struct{}{}:
		defer func() { <-s.spools }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	file, err := s.receive(ctx, body, most)
	if err != nil {
		return nil, err
	}
	plain := &space{low: s.cfg.DiskLow, left: most, most: most}
	a, err := source.NewArchive(ctx, file, "the file", s.cfg.Dir, plain)
	if err != nil {
		return nil, faultOf(cmp.Or(plain.err, err))
	}
	defer a.Close()
	var packed []source.Packed
	if q.Rootfs {
		var one source.Packed
		one, err = a.Rootfs(ctx, of)
		packed = []source.Packed{one}
	} else {
		packed, err = a.Packed(ctx)
	}
	if err != nil {
		return nil, faultOf(err)
	}
	rows, err := rowsOf(packed, name)
	if err != nil {
		return nil, err
	}
	return s.store(ctx, packed, rows)
}

// check returns the full name of the image, and the platform of a root file system.
func (q *Request) check() (name string, of source.Platform, err error) {
	if q.Name != "" {
		r, err := source.Parse(q.Name)
		if err != nil || r.Kind != source.FromRegistry || r.Digest != nil {
			return "", of, problem.Invalid("query.name", "%.100q cannot be the name of an image; write it as web:1 or team/web:1", q.Name)
		}
		name = r.Canonical
	}
	of = source.Platform{OS: "linux", Architecture: runtime.GOARCH}
	switch parts := strings.Split(q.Platform, "/"); {
	case q.Rootfs && name == "":
		return "", of, problem.Invalid("query.name", "is missing: a root file system has no name of its own")
	case q.Platform == "":
	case !q.Rootfs:
		return "", of, problem.Invalid("query.platform", "is of a root file system; an image says itself what it is for")
	case len(parts) < 2 || len(parts) > 3 || parts[0] != "linux" || parts[1] == "":
		return "", of, problem.Invalid("query.platform", "is %.40q; write it as linux/amd64 or linux/arm64", q.Platform)
	default:
		of.Architecture = parts[1]
		if len(parts) == 3 {
			of.Variant = parts[2]
		}
	}
	return name, of, nil
}

func tooLarge(most int64) error { return &http.MaxBytesError{Limit: most} }

// receive keeps the body in a file without a name, which goes with this process however that ends:
// the table of images is often at the end of a tar, so that it is read twice.
func (s *Service) receive(ctx context.Context, body io.Reader, most int64) (_ *os.File, err error) {
	if err := s.cfg.DiskLow(); err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(s.cfg.Dir, ".image-")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
		}
	}()
	if err := os.Remove(f.Name()); err != nil {
		return nil, err
	}
	in := &incoming{r: body, left: most, most: most, low: s.cfg.DiskLow}
	if _, err = io.Copy(f, in); err == nil {
		_, err = f.Seek(0, io.SeekStart)
		return f, err
	}
	if over := context.Cause(ctx); in.broke != nil && over != nil {
		return nil, over
	}
	if in.broke != nil {
		return nil, &muster.Fault{Kind: muster.FaultInvalid, Message: "the image could not be received", Err: in.broke}
	}
	return nil, err
}

// checkDiskEvery is how many bytes come between two looks at the free disk.
const checkDiskEvery = 8 << 20

// incoming is the body on its way: counted, and stopped when the disk runs low.
type incoming struct {
	r          io.Reader
	left, most int64
	low        func() error
	unchecked  int
	// broke is an error of r.
	broke error
}

// Read reads on while there may be more.
func (in *incoming) Read(p []byte) (int, error) {
	n, err := in.r.Read(p)
	if in.left -= int64(n); in.left < 0 {
		return 0, tooLarge(in.most)
	}
	if err != nil && err != io.EOF {
		in.broke = err
	}
	if in.unchecked += n; in.unchecked >= checkDiskEvery {
		in.unchecked = 0
		if low := in.low(); low != nil {
			return 0, low
		}
	}
	return n, err
}

// space is the disk for the plain form of a compressed tar.
type space struct {
	low        func() error
	left, most int64
	// err is why there was no more. The archive makes a sentence of it.
	err error
}

// Reserve takes n bytes.
func (s *space) Reserve(_ context.Context, n int64) error {
	if s.err = s.low(); s.err != nil {
		return s.err
	}
	if s.left -= n; s.left < -n {
		s.err = tooLarge(s.most)
	}
	return s.err
}

// Piece is how many bytes to ask for at a time.
func (s *space) Piece() int64 { return checkDiskEvery }

// faultOf is an error of reading an archive as clients get it. What is wrong with the file is the
// user's.
func faultOf(err error) error {
	var f *muster.Failure
	if errors.As(err, &f) && f.Class != muster.FailureNode {
		return muster.Faultf(muster.FaultInvalid, "%s", f.Message)
	}
	return err
}

// rowsOf makes the rows of the images: of each name one.
func rowsOf(packed []source.Packed, name string) ([]state.LoadedImage, error) {
	if name != "" && len(packed) != 1 {
		return nil, problem.Invalid("query.name", "is one name, and the file has %d images; leave it out to use their own names, or save one of them", len(packed))
	}
	var rows []state.LoadedImage
	for _, p := range packed {
		names := p.Names
		if name != "" {
			names = []string{name}
		}
		row := state.LoadedImage{Digest: p.Root.String()}
		for _, b := range p.Blobs {
			row.Blobs = append(row.Blobs, state.LoadedBlob{Digest: b.Digest.String(), Size: b.Size})
		}
		for _, platform := range p.Platforms {
			row.Platforms = append(row.Platforms, platform.String())
		}
		if len(names) == 0 {
			return nil, muster.Faultf(muster.FaultInvalid, "image %.19s in the file has no name: give it one (`muster image load --name web:1`), or save it by its name", row.Digest)
		}
		for _, n := range names {
			row.Name = muster.ImageName(n)
			if len(row.Blobs) > state.MaxLoadedBlobs {
				return nil, muster.Faultf(muster.FaultInvalid, "image %s: has %d layers and manifests; the most is %d", present.ImageName(row.Name), len(row.Blobs), state.MaxLoadedBlobs)
			}
			rows = append(rows, row)
		}
	}
	if len(rows) == 0 {
		return nil, muster.Faultf(muster.FaultInvalid, "the file has no image")
	}
	return rows, nil
}

// store puts the blobs of images into the store, and then the images into the table.
func (s *Service) store(ctx context.Context, packed []source.Packed, rows []state.LoadedImage) (*api.LoadedImageList, error) {
	if err := s.changing.Take(ctx); err != nil {
		return nil, err
	}
	defer s.changing.Leave()
	if err := s.fit(ctx, rows); err != nil {
		return nil, err
	}
	done := map[string]bool{}
	var put []state.LoadedBlob
	err := func() error {
		for _, p := range packed {
			for _, b := range p.Blobs {
				digest := b.Digest.String()
				if done[digest] {
					continue
				}
				done[digest] = true
				if _, err := s.cfg.Blobs.PutUpload(ctx, digest, b.Open(), b.Size); err != nil {
					return fmt.Errorf("part %.19s of the image: %w", digest, err)
				}
				put = append(put, state.LoadedBlob{Digest: digest, Size: b.Size})
			}
		}
		return nil
	}()
	names := map[string]bool{}
	for i := 0; err == nil && i < len(rows); i++ {
		before := state.LoadedImagesOf(s.cfg.State.Latest()).Find(rows[i].Name)
		if _, _, err = s.cfg.Proposer.Propose(ctx, &state.ImageLoaded{Image: rows[i]}); err == nil {
			names[rows[i].Name] = true
			if before != nil {
				// Two versions back nobody is fetching any more.
				s.drop(ctx, before.Replaced)
			}
		}
	}
	if err != nil {
		// The request may be over; what it stored is not needed all the same.
		s.drop(context.WithoutCancel(ctx), put)
		return nil, err
	}
	return s.list(s.cfg.State.Latest(), func(im *state.LoadedImage) bool { return names[im.Name] }), nil
}

// fit refuses images for which the quota leaves no space, after unused images were removed.
// s.changing is held.
func (s *Service) fit(ctx context.Context, rows []state.LoadedImage) error {
	quota := s.cfg.Quota()
	if quota <= 0 {
		return nil
	}
	again := map[string]bool{}
	for i := range rows {
		again[rows[i].Name] = true
	}
	var have, more int64
	fits := func() bool {
		sizes := stored(state.LoadedImagesOf(s.cfg.State.Latest()), again)
		have, more = 0, 0
		for _, size := range sizes {
			have += size
		}
		for i := range rows {
			for _, b := range rows[i].Blobs {
				if _, there := sizes[b.Digest]; !there {
					sizes[b.Digest] = b.Size
					more += b.Size
				}
			}
		}
		return have+more <= quota
	}
	if err := s.prune(ctx, fits); err != nil || fits() {
		return err
	}
	var unused []string
	images := state.LoadedImagesOf(s.cfg.State.Latest())
	users := images.Users()
	images.Each(func(im *state.LoadedImage) bool {
		if users[im.Name] == nil && !again[im.Name] {
			unused = append(unused, present.ImageName(im.Name))
		}
		return len(unused) < 5
	})
	remove := "all loaded images are in use"
	if len(unused) > 0 {
		slices.Sort(unused)
		remove = "remove images that nothing uses (`muster image remove`): " + strings.Join(unused, ", ")
	}
	return problem.New(http.StatusInsufficientStorage, string(muster.FaultQuota), fmt.Sprintf(
		"the image needs %s more, loaded images have %s, and the blob store may have %s (blob.quota); %s; or raise the quota",
		muster.Bytes(more), muster.Bytes(have), muster.Bytes(quota), remove))
}
