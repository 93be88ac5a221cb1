package blob

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"strings"
	"time"

	"github.com/musterhq/muster"
)

const (
	// askedFor is how long an upload is safe from SweepUploads after somebody was
	// told that it is here: who asked is about to submit a job that needs it.
	askedFor = time.Hour
	// maxAsked bounds what is remembered of that.
	maxAsked = 100_000
	// checkDiskEvery is how many bytes of an upload come between two looks at the free disk.
	checkDiskEvery = 8 << 20
	// maxFailures ends a sweep: it is the store that fails, and not single uploads.
	maxFailures = 100
)

// PutUpload stores an input that a user uploads, if its content has the digest
// and at most limit bytes. An upload that is here already is verified and not
// stored again. It is kept until SweepUploads.
func (s *Store) PutUpload(ctx context.Context, digest string, r io.Reader, limit int64) (int64, error) {
	if err := CheckDigest(digest); err != nil {
		return 0, fmt.Errorf("digest %.80q %w", digest, err)
	}
	if !s.ask(digest) {
		return 0, &muster.Fault{Kind: muster.FaultUnavailable, After: time.Second, Message: "upload " + digest + ": is being deleted at this moment"}
	}
	if err := s.diskLow(); err != nil {
		return 0, err
	}
	in := &upload{r: r, left: limit, limit: limit, hash: sha256.New(), low: s.diskLow}
	verify := func() error {
		if got := digestPrefix + hex.EncodeToString(in.hash.Sum(nil)); got != digest {
			return muster.Faultf(muster.FaultInvalid, "upload: the content has digest %s, not %s", got, digest)
		}
		return nil
	}
	_, err := s.Stat(ctx, UploadKey(digest))
	var n int64
	switch {
	case err == nil:
		if n, err = io.Copy(io.Discard, in); err == nil {
			err = verify()
		}
	case muster.IsKind(err, muster.FaultNotFound):
		n, err = s.put(ctx, UploadKey(digest), in, verify)
	}
	if err == nil {
		return n, nil
	}
	var f *muster.Fault
	if over := context.Cause(ctx); !errors.As(err, &f) && (over == nil || !errors.Is(err, over)) {
		// What remains is an error of the user's connection. The end of that ends a request's context as well.
		err = &muster.Fault{Kind: muster.FaultInvalid, Message: "upload: the content could not be read", Err: err}
	}
	return 0, err
}

// upload is the user's content on its way: counted, hashed, and stopped when the disk runs low.
type upload struct {
	r           io.Reader
	left, limit int64
	hash        hash.Hash
	low         func() error
	unchecked   int64
}

func (u *upload) Read(p []byte) (int, error) {
	n, err := u.r.Read(p)
	if u.left -= int64(n); u.left < 0 {
		return 0, muster.Faultf(muster.FaultInvalid, "upload: has more than %s, which is the most that an upload may have", muster.Bytes(u.limit))
	}
	u.hash.Write(p[:n])
	if u.unchecked += int64(n); u.unchecked >= checkDiskEvery {
		u.unchecked = 0
		if low := u.low(); low != nil {
			return 0, low
		}
	}
	return n, err
}

// Upload tells whether an upload is here; a not-found fault if not. If it is,
// it stays for a while, so that a job may be submitted that refers to it.
func (s *Store) Upload(ctx context.Context, digest string) (Info, error) {
	if err := CheckDigest(digest); err != nil {
		return Info{}, fmt.Errorf("digest %.80q %w", digest, err)
	}
	if !s.ask(digest) {
		return Info{}, muster.Faultf(muster.FaultNotFound, "upload %s: not found", digest)
	}
	info, err := s.Stat(ctx, UploadKey(digest))
	if muster.IsKind(err, muster.FaultNotFound) {
		s.mu.Lock()
		delete(s.asked, digest)
		s.mu.Unlock()
		return Info{}, muster.Faultf(muster.FaultNotFound, "upload %s: not found", digest)
	}
	return info, err
}

// BeginSweeping is called before the first sweep of a leadership. Other servers may have promised uploads until
// now, and this one does not know which: none is deleted before such promises have ended.
func (s *Store) BeginSweeping() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opened = time.Now()
}

// ask notes that somebody relies on an upload; false if it is being deleted.
func (s *Store) ask(digest string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.going[digest] {
		return false
	}
	if len(s.asked) >= maxAsked {
		s.forgetAskedLocked()
	}
	s.asked[digest] = time.Now()
	return true
}

// forgetAskedLocked counts by the monotonic clock, which no step of the system's clock touches.
func (s *Store) forgetAskedLocked() {
	for d, t := range s.asked {
		if time.Since(t) >= askedFor {
			delete(s.asked, d)
		}
	}
}

// SweepUploads deletes uploads that no job refers to, that were first seen by a sweep at least age before now, and that
// nobody asked for within the last hour. It returns how many. In the first hour of the process it deletes nothing, as it is
// not known who asked the process before.
//
// now is the caller's clock, the same for all sweeps, of this process and of others. The time at which the store says that an
// upload was written is not used: it comes from another clock, which may have been set since or may be hours or years off.
// Instead, the sweep that first sees an upload stores the time beside it.
func (s *Store) SweepUploads(ctx context.Context, now time.Time, age time.Duration, referred func(digest string) bool) (int, error) {
	uploads, seen, err := s.uploads(ctx)
	if err != nil {
		return 0, fmt.Errorf("sweep uploads: %w", err)
	}
	s.mu.Lock()
	s.forgetAskedLocked()
	mayDelete := time.Since(s.opened) >= askedFor
	s.mu.Unlock()
	n, failures := 0, 0
	var first error
	fail := func(err error) {
		if err == nil {
			return
		}
		if failures++; first == nil {
			first = err
		}
	}
	for digest, size := range uploads {
		if ctx.Err() != nil {
			return n, context.Cause(ctx)
		}
		if failures == maxFailures {
			break
		}
		since, known := seen[digest]
		switch {
		case !known:
			_, err := s.Put(ctx, seenKey(digest, now), strings.NewReader(""))
			fail(err)
		case now.Sub(since) >= age && mayDelete && !referred(digest) && s.letGo(digest):
			// The time goes first. If the process ends here, the next sweep stores it again, and the upload is kept for longer.
			// The other order would leave a time that is too early for the same content uploaded again.
			err := s.remove(ctx, Info{Key: seenKey(digest, since)})
			if err == nil {
				err = s.remove(ctx, Info{Key: UploadKey(digest), Size: size})
			}
			s.mu.Lock()
			delete(s.going, digest)
			s.mu.Unlock()
			if fail(err); err == nil {
				n++
			}
		}
	}
	for digest, since := range seen {
		if _, there := uploads[digest]; !there && failures < maxFailures && ctx.Err() == nil {
			fail(s.remove(ctx, Info{Key: seenKey(digest, since)}))
		}
	}
	switch {
	case failures > 1:
		return n, fmt.Errorf("sweep uploads: of %d uploads: %w", failures, first)
	case failures == 1:
		return n, fmt.Errorf("sweep uploads: %w", first)
	}
	return n, nil
}

// DropUploads deletes some uploads at once, those of an image that was removed, without the wait of
// SweepUploads. Those that referred reports stay. What is sent again at the same time is refused
// for a moment.
func (s *Store) DropUploads(ctx context.Context, digests []string, referred func(digest string) bool) error {
	var errs []error
	for _, digest := range digests {
		if CheckDigest(digest) != nil || referred(digest) {
			continue
		}
		s.mu.Lock()
		delete(s.asked, digest)
		s.going[digest] = true
		s.mu.Unlock()
		info, err := s.Stat(ctx, UploadKey(digest))
		if err == nil {
			err = s.remove(ctx, info)
		} else if muster.IsKind(err, muster.FaultNotFound) {
			err = nil
		}
		errs = append(errs, err)
		s.mu.Lock()
		delete(s.going, digest)
		s.mu.Unlock()
	}
	return errors.Join(errs...)
}

// uploads lists the sizes of all uploads, and when a sweep first saw them.
func (s *Store) uploads(ctx context.Context) (sizes map[string]int64, seen map[string]time.Time, err error) {
	sizes, seen = map[string]int64{}, map[string]time.Time{}
	err = s.each(ctx, uploadsPrefix, func(i Info) error {
		if digest, ok := UploadDigest(i.Key); ok {
			sizes[digest] = i.Size
		} else if digest, at, ok := parseSeenKey(i.Key); ok && at.After(seen[digest]) {
			seen[digest] = at // the latest, should two servers have stored one each
		}
		return nil
	})
	return sizes, seen, err
}

// letGo marks an upload as being deleted unless somebody relies on it.
func (s *Store) letGo(digest string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, relied := s.asked[digest]; relied {
		return false
	}
	s.going[digest] = true
	return true
}
