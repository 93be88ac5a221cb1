package metadata

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/wait"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

const (
	// address of the service, the same in all clouds that have one.
	address = "http://169.254.169.254"
	// askTimeout bounds one request. The service is on the same host, so it answers at once.
	askTimeout = 5 * time.Second
	// maxAnswer bounds what is read of one answer, in bytes.
	maxAnswer = 256 << 10
	// horizon is how long before maintenance it is told. Clouds announce it weeks ahead, and a node
	// that stops taking work so early would only cost money.
	horizon = time.Hour
)

// Config is what a Watch needs. Kind and Tell are required.
type Config struct {
	// Kind is that of cloud.MetadataServed.
	Kind string
	// Address replaces that of the service, for tests; empty: that of the service.
	Address string
	// Tell is called from Run with each notice that differs from the one before; the zero Notice:
	// the cloud has withdrawn it. It must not block.
	Tell func(wire.Notice)
	// Logger may be nil.
	Logger *slog.Logger
}

// reader asks the service of one cloud.
type reader interface {
	// read returns the notice that is open; the zero one: none. seen is the notice that it returned
	// last, for clouds that do not say when it happens.
	read(ctx context.Context, now time.Time, seen wire.Notice) (wire.Notice, error)
}

// Serves reports whether the service of this kind has notices. Those of Hetzner and OpenStack have
// none.
func Serves(kind string) bool { return kind == "ec2" || kind == "gce" || kind == "azure" }

// Watch asks the service of this machine's cloud for notices.
type Watch struct {
	cfg    Config
	every  time.Duration
	client *http.Client
	reader reader
}

// New makes a Watch. It fails for a kind without notices.
func New(cfg Config) (*Watch, error) {
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	s := &service{address: cmp.Or(cfg.Address, address), client: &http.Client{
		Timeout: askTimeout,
		// A proxy of the environment would answer for itself, not for this machine.
		Transport:     &http.Transport{DialContext: (&net.Dialer{Timeout: askTimeout}).DialContext, MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	switch cfg.Kind {
	case "ec2":
		// AWS advises five seconds; it gives two minutes.
		return &Watch{cfg, 5 * time.Second, s.client, &ec2{service: s}}, nil
	case "gce":
		// GCE gives 30 seconds, and so does Azure, which advises one second.
		return &Watch{cfg, time.Second, s.client, &gce{service: s}}, nil
	case "azure":
		return &Watch{cfg, time.Second, s.client, &azure{service: s}}, nil
	}
	return nil, fmt.Errorf("metadata service %q has no notices: known are ec2, gce and azure", cfg.Kind)
}

// Run asks until ctx ends. While the service does not answer, the last notice stands. The error is
// always nil.
func (w *Watch) Run(ctx context.Context) error {
	var seen wire.Notice
	faults := 0
	for {
		now, err := w.reader.read(ctx, time.Now(), seen)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			// Only the first failure in a row is logged: the next one is seconds away.
			if faults++; faults == 1 {
				w.cfg.Logger.Warn("notices of the cloud not read; asking again", "service", w.cfg.Kind, "every", w.every, "error", err)
			}
		default:
			faults = 0
			if now != seen {
				seen = now
				w.cfg.Tell(now)
			}
		}
		if !wait.For(ctx, w.every) {
			return nil
		}
	}
}

// service sends requests to a metadata service.
type service struct {
	address string
	client  *http.Client
}

// errAbsent says that the service does not have what was asked for.
var errAbsent = errors.New("not there")

// errToken says that the service wants a token, or another one.
var errToken = errors.New("the token is refused")

// ask sends a request with one header field, and returns the body of the answer.
func (s *service) ask(ctx context.Context, method, path, field, value string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, s.address+path, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set(field, value)
	answer, err := s.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer+1))
	switch {
	case answer.StatusCode == http.StatusNotFound:
		return nil, errAbsent
	case answer.StatusCode == http.StatusUnauthorized:
		return nil, errToken
	case answer.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s %s: %s", method, path, answer.Status)
	case err != nil:
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	case len(body) > maxAnswer:
		return nil, fmt.Errorf("%s %s: the answer is longer than %d bytes", method, path, maxAnswer)
	}
	return body, nil
}

// worse returns the more urgent of two notices: one that drains the node before one at risk, and the
// earlier of two that drain it.
func worse(a, b wire.Notice) wire.Notice {
	switch {
	case a.Kind == "":
		return b
	case b.Kind == "":
		return a
	case (a.Kind == wire.NoticeAtRisk) != (b.Kind == wire.NoticeAtRisk):
		if a.Kind == wire.NoticeAtRisk {
			return b
		}
		return a
	case b.At < a.At:
		return b
	}
	return a
}

// soon drops maintenance that is further away than the horizon.
func soon(n wire.Notice, now time.Time) wire.Notice {
	if n.Kind == wire.NoticeMaintenance && n.At.Std().Sub(now) > horizon {
		return wire.Notice{}
	}
	return n
}

// after is a notice of a cloud that says what but not when: it happens some time after it was first
// seen.
func after(kind string, given time.Duration, now time.Time, seen wire.Notice) wire.Notice {
	if seen.Kind == kind {
		return seen
	}
	return wire.Notice{Kind: kind, At: muster.At(now.Add(given))}
}
