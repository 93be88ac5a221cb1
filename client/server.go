package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/wait"
)

// Server is what the server says of itself.
func (c ClusterAPI) Server(ctx context.Context) (*api.ServerInfo, error) {
	return fetch[api.ServerInfo](ctx, c.caller, request{method: http.MethodGet, path: "/v1/server"})
}

// Config is the configuration that the server runs with now, without secrets.
func (c ClusterAPI) Config(ctx context.Context) (*api.ServerConfig, error) {
	return fetch[api.ServerConfig](ctx, c.caller, request{method: http.MethodGet, path: "/v1/config"})
}

// AppliedConfig is the configuration of the cluster that is in force, and how the file of the server that
// answers differs from it.
func (c ClusterAPI) AppliedConfig(ctx context.Context) (*api.AppliedConfig, error) {
	return fetch[api.AppliedConfig](ctx, c.caller, request{method: http.MethodGet, path: "/v1/config/applied"})
}

// ApplyConfig puts a configuration in force, or says what it would change.
func (c ClusterAPI) ApplyConfig(ctx context.Context, a api.ConfigApply) (*api.ConfigApplied, error) {
	r, err := jsonBody(request{method: http.MethodPut, path: "/v1/config/applied", once: a.IfVersion != nil}, a)
	if err != nil {
		return nil, err
	}
	return fetch[api.ConfigApplied](ctx, c.caller, r)
}

// Live asks whether the server's process is alive.
func (c ClusterAPI) Live(ctx context.Context) error {
	err := c.call(ctx, request{method: http.MethodGet, path: "/livez", once: true}, nil)
	return err
}

// Ready asks whether the server takes requests now.
func (c ClusterAPI) Ready(ctx context.Context) error {
	err := c.call(ctx, request{method: http.MethodGet, path: "/readyz", once: true}, nil)
	return err
}

// WaitReady waits until the server takes requests, or ctx is over: then the
// error says what was the matter last.
func (c ClusterAPI) WaitReady(ctx context.Context) error {
	for delay := firstWait; ; delay = min(2*delay, longestWait/2) {
		at, _ := c.place()
		err := c.Ready(ctx)
		if err == nil {
			return nil
		}
		if again, _ := retriable(err); !again && ctx.Err() == nil {
			return err
		}
		if !wait.For(ctx, jitter(delay)) {
			if errors.Is(err, ctx.Err()) {
				return err
			}
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		}
		c.findAgain(at)
	}
}

// Backup is a stream of the server's state, for muster restore. It is whole only
// if it is read to io.EOF. The caller closes it.
func (c ClusterAPI) Backup(ctx context.Context) (io.ReadCloser, error) {
	return c.rawBody(ctx, "/v1/backup")
}

// Metrics is the server's metrics in Prometheus' text form. The caller closes it.
func (c ClusterAPI) Metrics(ctx context.Context) (io.ReadCloser, error) {
	return c.rawBody(ctx, "/metrics")
}

// OpenAPI is the description of the HTTP API. The caller closes it.
func (c ClusterAPI) OpenAPI(ctx context.Context) (io.ReadCloser, error) {
	return c.rawBody(ctx, "/openapi.json")
}

func (c *caller) rawBody(ctx context.Context, path string) (io.ReadCloser, error) {
	resp, err := c.stream(ctx, request{method: http.MethodGet, path: path})
	if err != nil {
		return nil, err
	}
	return &broken{resp.Body, c.Address()}, nil
}

// broken names the server when it goes away in the middle of a stream.
type broken struct {
	io.ReadCloser
	address string
}

func (b *broken) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, context.Canceled) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = &Unreachable{b.address, err}
	}
	return n, err
}
