package source

import (
	"context"
	"io"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Sender waits for a blob that the server sends, by its digest. What it returns has the digest. An
// error is a failure, or that of ctx.
type Sender func(ctx context.Context, digest string) (io.ReadSeekCloser, error)

// recheckSent is how often the server is asked whether it still sends an image from its cache. It
// sends nothing if it was started again, or if its cache cannot have the blob.
const recheckSent = 10 * time.Second

// sentDigest is the digest of the image that the server sends; zero if it sends none.
func (s *session) sentDigest() v1.Hash {
	if s == nil {
		return v1.Hash{}
	}
	return s.digest
}

// fromServer waits for a blob from the server's cache. It returns nothing at all if the registry is
// to be asked for it: from the start, or because the server changed its mind. An error is a failure
// of the server's grant, or that of ctx.
func (r *Registry) fromServer(ctx context.Context, digest v1.Hash) (io.ReadSeekCloser, error) {
	s, err := r.open(ctx, nil)
	if err != nil || s.digest == (v1.Hash{}) {
		return nil, err
	}
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		blob io.ReadSeekCloser
		err  error
	}
	came := make(chan result, 1)
	go func() {
		blob, err := r.sent(waiting, digest.String())
		came <- result{blob, err}
	}()
	// What comes in the moment of leaving is closed.
	leave := func() {
		cancel()
		if c := <-came; c.blob != nil {
			_ = c.blob.Close()
		}
	}
	tick := time.NewTicker(r.recheck)
	defer tick.Stop()
	for {
		select {
		case c := <-came:
			return c.blob, c.err
		case <-tick.C:
		}
		// A new grant is asked for although the old one may be valid: it tells whether the server
		// still sends, and why not.
		s, err = r.open(ctx, s)
		if err != nil || s.digest == (v1.Hash{}) {
			leave()
			return nil, err
		}
	}
}
