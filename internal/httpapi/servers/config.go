package servers

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/config"
	"github.com/musterhq/muster/internal/door"
	"github.com/musterhq/muster/internal/httpapi/route"
	"github.com/musterhq/muster/internal/httpapi/schema"
)

// configuration registers what concerns the configuration: that of the server that answers, and that
// of the cluster.
func (h handlers) configuration() {
	if h.cfg.Running != nil {
		// The fields are described in docs/files.md and not here.
		running := route.Operation(http.MethodGet, "/v1/config", "get-config", Tag, "The configuration that it runs with",
			"As a file would have it (docs/files.md), with all defaults and without secrets; what a reload has changed is in it.")
		running.Responses = route.RawBody("application/json", "The configuration.", nil)
		route.Register(h.router, running, func(context.Context, *struct{}) (*huma.StreamResponse, error) {
			return &huma.StreamResponse{Body: h.running}, nil
		})
	}
	if h.cfg.Applied == nil {
		return
	}
	type shown struct{ Body api.AppliedConfig }
	show := route.Operation(http.MethodGet, "/v1/config/applied", "get-applied-config", Tag, "The configuration of the cluster",
		"The one in force, the same on every server, and how the file of the server that answers differs from it.")
	show.Errors = append(show.Errors, http.StatusNotFound)
	route.Register(h.router, show, func(context.Context, *struct{}) (*shown, error) {
		c, err := h.cfg.Applied.Show()
		if err != nil {
			return nil, err
		}
		return &shown{*c}, nil
	})

	apply := route.Operation(http.MethodPut, "/v1/config/applied", "apply-config", Tag, "Apply a configuration to the cluster",
		"All of the cluster's part: what is left out gets its default, and pools that are left out are drained. It counts until another one is applied, whatever the files of servers say.")
	apply.Errors = append(apply.Errors, http.StatusConflict, http.StatusServiceUnavailable, http.StatusInsufficientStorage)
	// The fields are described in docs/files.md and not here.
	route.AnyBody(&apply, "An object with config, the cluster's part of a configuration (docs/files.md); if_version, so that it is applied only if that version is in force; and dry_run, so that nothing is changed.")
	route.Register(h.router, apply, h.apply)
}

// running answers with the configuration that the server runs with. Secrets are shown as stars, and
// so are the environments and arguments of provider programs, which may have credentials.
func (h handlers) running(ctx huma.Context) {
	_, w := humago.Unwrap(ctx)
	b, err := schema.Encode(config.Masked(h.cfg.Running()))
	if err != nil {
		h.router.Fail(ctx.Context(), "get-config", err).Write(w)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(b) // whoever asked may have left
}

type applyIn struct{ route.RequestBody }

type applyOut struct{ Body api.ConfigApplied }

func (h handlers) apply(ctx context.Context, in *applyIn) (*applyOut, error) {
	var b api.ConfigApply
	if p := door.Decode(in.JSON, &b); p != nil {
		return nil, p
	}
	out, err := h.cfg.Applied.Apply(ctx, &b)
	if err != nil {
		return nil, err
	}
	return &applyOut{*out}, nil
}
