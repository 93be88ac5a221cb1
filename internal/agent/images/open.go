package images

import (
	"context"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/musterhq/muster/internal/agent/images/failure"
	"github.com/musterhq/muster/internal/agent/images/source"
	"github.com/musterhq/muster/internal/wait"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// Image is an image in use: its layers stay as they are until Release.
type Image struct {
	// Ref is as it was asked for; Digest is what it was resolved to, an index where there is one.
	Ref, Digest string
	// Layers are absolute directories in the order of overlay's lowerdir, top first. Short are the
	// same relative to LayersDir. An image may have none.
	Layers, Short []string
	Config        source.ImageConfig

	store  *Store
	image  *image
	layers []*layer
	once   sync.Once
}

// Release ends the use; further calls do nothing.
func (im *Image) Release() {
	im.once.Do(func() { im.store.release(im.image, im.layers) })
}

// Progress is how far a pull is. Bytes are compressed ones, of layers that were not here.
type Progress struct {
	Ref                string
	Done, Total        int64
	Layers, LayersDone int
	Unpacking          bool // all bytes are here
}

// progressEvery is the least time between two tellings.
const progressEvery = 200 * time.Millisecond

// pull is one reference on its way, for all that opened it at the same time.
type pull struct {
	key string
	ref source.Reference
	by  wire.Puller
	// fresh is how old an answer of the registry may be.
	fresh  time.Duration
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{}

	waiters int // guarded by Store.mu
	// valid after done
	content *source.Content
	image   *image
	layers  []*layer // bottom first
	err     error

	mu     sync.Mutex // guards what follows
	known  int        // layers of the image; 0: not known yet
	ready  int
	gauges map[int]*source.Gauge // of layers that are not here, by position
}

// Open makes an image ready and in use. A tag is asked for at its registry unless that was done
// within Config.Fresh. An image that is here is used for a scope of by only if its registry has shown
// it to that scope, now or before. tell, which may be nil, is called in this goroutine while something
// is fetched. An error is a *muster.Failure, or that of ctx. Calls for one reference by the same puller
// at the same time share one pull.
func (s *Store) Open(ctx context.Context, ref string, by wire.Puller, tell func(Progress)) (*Image, error) {
	return s.open(ctx, ref, by, s.Fresh, tell)
}

// Pull is Open that asks the registry in any case what a tag means now.
func (s *Store) Pull(ctx context.Context, ref string, by wire.Puller, tell func(Progress)) (*Image, error) {
	return s.open(ctx, ref, by, 0, tell)
}

func (s *Store) open(ctx context.Context, ref string, by wire.Puller, fresh time.Duration, tell func(Progress)) (*Image, error) {
	r, err := source.Parse(ref)
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	key := keyOfPull(r.Canonical, by)
	shown := ref
	if r.Kind == source.FromServer {
		// Two images that were loaded under one name are two pulls.
		key, shown = ref, r.Canonical
	} else if fresh == 0 {
		key += " now"
	}
	s.mu.Lock()
	p := s.pulls[key]
	if p == nil {
		p = &pull{key: key, ref: r, by: by, fresh: fresh, done: make(chan struct{}), gauges: map[int]*source.Gauge{}}
		p.ctx, p.cancel = context.WithCancel(context.WithoutCancel(ctx))
		s.pulls[key] = p
		go s.runPull(p)
	}
	p.waiters++
	s.mu.Unlock()
	if err := s.waitPull(ctx, p, ref, tell); err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, failure.Naming("image "+shown, err)
	}
	return s.newImage(ref, p.content, p.image, p.layers), nil
}

func (s *Store) newImage(ref string, ct *source.Content, im *image, layers []*layer) *Image {
	out := &Image{Ref: ref, Digest: im.record.Digest, Config: ct.Image, store: s, image: im, layers: layers}
	c := &out.Config
	for _, list := range []*[]string{&c.Entrypoint, &c.Cmd, &c.Env, &c.Volumes, &c.ExposedPorts} {
		*list = slices.Clone(*list) // others have the same configuration
	}
	seen := map[string]bool{}
	for _, l := range slices.Backward(layers) {
		if !seen[l.record.Diff] { // Hold may have two of one
			seen[l.record.Diff] = true
			out.Layers = append(out.Layers, s.layerPath(l))
			out.Short = append(out.Short, l.name)
		}
	}
	return out
}

// waitPull waits for the end of a pull. Who leaves last ends it, and waits for its end.
func (s *Store) waitPull(ctx context.Context, p *pull, ref string, tell func(Progress)) error {
	var tick <-chan time.Time
	if tell != nil {
		ticker := time.NewTicker(progressEvery)
		defer ticker.Stop()
		tick = ticker.C
	}
	var last Progress
	say := func() {
		if now := p.progress(ref); now.Total > 0 && now != last {
			last = now
			tell(now)
		}
	}
	for {
		select {
		case <-p.done:
			if tell != nil && p.err == nil {
				say()
			}
			return p.err
		case <-tick:
			say()
		case <-ctx.Done():
			s.leavePull(p)
			return context.Cause(ctx)
		}
	}
}

func (s *Store) leavePull(p *pull) {
	s.mu.Lock()
	p.waiters--
	last := p.waiters == 0
	ended := wait.Closed(p.done)
	if last && s.pulls[p.key] == p {
		delete(s.pulls, p.key)
	}
	s.mu.Unlock()
	switch {
	case ended && p.err == nil: // this waiter was counted as a user
		s.release(p.image, p.layers)
	case last && !ended:
		p.cancel()
		<-p.done
	}
}

func (p *pull) progress(ref string) Progress {
	p.mu.Lock()
	defer p.mu.Unlock()
	pr := Progress{Ref: ref, Layers: p.known, LayersDone: p.ready}
	for _, g := range p.gauges {
		pr.Total += g.Total.Load()
		pr.Done += min(g.Done.Load(), g.Total.Load())
	}
	pr.Unpacking = pr.Total > 0 && pr.Done == pr.Total && pr.LayersDone < pr.Layers
	return pr
}

func (s *Store) runPull(p *pull) {
	defer p.cancel()
	ct, im, layers, err := s.pull(p)
	s.mu.Lock()
	if s.pulls[p.key] == p {
		delete(s.pulls, p.key)
	}
	p.content, p.image, p.layers, p.err = ct, im, layers, err
	waiters := p.waiters
	if err == nil && waiters > 0 { // the pull's own use becomes that of one of them
		im.refs += waiters - 1
		for _, l := range layers {
			l.refs += waiters - 1
		}
	}
	close(p.done)
	s.mu.Unlock()
	if err == nil && waiters == 0 {
		s.release(im, layers)
	}
}

// pull resolves the reference and brings all layers. They come back in use.
func (s *Store) pull(p *pull) (*source.Content, *image, []*layer, error) {
	ctx := p.ctx
	s.sweep()
	found, err := s.find(ctx, p.ref, p.by, p.fresh)
	if err != nil {
		return nil, nil, nil, err
	}
	defer found.src.Close()
	if found.held != nil {
		defer s.release(found.held, nil)
	}
	wanted := found.content.Diffs()
	p.mu.Lock()
	p.known = len(wanted)
	p.mu.Unlock()
	layers, err := s.bringAll(ctx, p, found.src, found.by, wanted)
	if err != nil {
		return nil, nil, nil, err
	}
	im, err := s.keep(found, wanted, layers)
	if err != nil {
		s.release(nil, layers)
		return nil, nil, nil, failure.Node("image store: %v", err)
	}
	s.touch(im, layers)
	return found.content, im, layers, nil
}

// bringAll acquires layers at the same time; all or none.
func (s *Store) bringAll(ctx context.Context, p *pull, src source.Source, by access, wanted []source.Layer) ([]*layer, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	layers := make([]*layer, len(wanted))
	errs := make(chan error)
	for i, blob := range wanted {
		go func() {
			l, err := s.acquire(ctx, src, blob, by, func(g *source.Gauge) {
				p.mu.Lock()
				p.gauges[i] = g
				p.mu.Unlock()
			})
			if err == nil {
				p.mu.Lock()
				p.ready++
				p.mu.Unlock()
			}
			layers[i] = l
			errs <- err
		}()
	}
	var first error
	for range wanted {
		if err := <-errs; err != nil && first == nil {
			first = err
			cancel()
		}
	}
	if first == nil {
		return layers, nil
	}
	s.release(nil, slices.DeleteFunc(layers, func(l *layer) bool { return l == nil }))
	return nil, first
}

// keep records a whole image, for whom it is and what its reference means; it comes back in use.
func (s *Store) keep(found *found, wanted []source.Layer, layers []*layer) (*image, error) {
	ct := found.content
	record := imageRecord{Version: recordVersion, Digest: found.digest, Shift: s.Shift,
		Manifest: ct.Manifest.Digest.String(), Config: ct.Config.Digest.String()}
	for _, l := range wanted {
		record.Layers = append(record.Layers, l.Diff.String())
		record.Unsaid = record.Unsaid || l.DiffOnly
	}
	ref := &refRecord{Version: recordVersion, Ref: found.ref, Digest: found.digest, At: found.at, Stamp: found.stamp}
	s.mu.Lock()
	im := s.images[keyOf(record)]
	if im == nil {
		im = &image{record: record, used: time.Now()}
		s.images[keyOf(record)] = im
	}
	im.refs++
	gained := im.earnLocked(found.by, layers)
	record.Rights = slices.Clone(im.rights)
	// An answer that is the same is written again only now and then.
	old := s.refs[found.ref]
	same := old != nil && old.Digest == ref.Digest && old.Stamp == ref.Stamp && ref.At.Sub(old.At) < stampEvery
	if !same {
		s.refs[found.ref] = ref
	}
	s.mu.Unlock()
	var err error
	if found.held == nil {
		for _, d := range []source.Document{ct.Manifest, ct.Config} {
			if err == nil {
				err = s.writeFile(s.path(blobsDir, d.Digest.Hex), d.Data)
			}
		}
	}
	if err == nil && (found.held == nil || gained) {
		err = s.writeRecord(s.path(imagesDir, imageName(record)), record)
	}
	if err == nil && !same {
		err = s.writeRecord(s.path(refsDir, refName(ref.Ref)), ref)
	}
	if err != nil {
		s.release(im, nil)
		return nil, err
	}
	return im, nil
}

// stampEvery is how exactly times of use are known to the next process.
const stampEvery = time.Minute

// touch writes down when layers were used, for the next process.
func (s *Store) touch(im *image, layers []*layer) {
	now := time.Now()
	var paths []string
	s.mu.Lock()
	if now.Sub(im.stamped) > stampEvery {
		im.stamped = now
		paths = append(paths, s.path(imagesDir, imageName(im.record)))
	}
	for _, l := range layers {
		if now.Sub(l.stamped) > stampEvery {
			l.stamped = now
			paths = append(paths, s.path(recordsDir, l.name))
		}
	}
	s.mu.Unlock()
	for _, path := range paths {
		_ = os.Chtimes(path, now, now) // a wrong time costs a wrong eviction at most
	}
}

// Hold puts an image into use for a sandbox that an earlier process started, without looking at its
// layers: they are mounted, whatever they are. All Holds come before the first Open.
func (s *Store) Hold(digest string) (*Image, error) {
	s.mu.Lock()
	var im *image
	var layers []*layer
	for key, candidate := range s.images {
		if key.digest != digest {
			continue
		}
		if im == nil || key.shift == s.Shift {
			im = candidate
		}
		for _, diff := range candidate.record.Layers {
			for _, l := range s.layers {
				if l.record.Diff == diff && l.record.Shift == key.shift && !slices.Contains(layers, l) {
					layers = append(layers, l)
				}
			}
		}
	}
	if im == nil {
		s.mu.Unlock()
		return nil, failure.Node("image %s is not in the image store of this node", digest)
	}
	im.refs++
	for _, l := range layers {
		l.refs++
	}
	s.mu.Unlock()
	ct, err := s.readContent(im.record)
	if err != nil {
		s.Logger.Warn("image in use has lost its configuration", "image", digest, "error", err)
		ct = &source.Content{}
	}
	return s.newImage(digest, ct, im, layers), nil
}
