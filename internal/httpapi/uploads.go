package httpapi

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/blob"
	"github.com/musterhq/muster/internal/problem"
)

// stall is how long a client may keep a transfer waiting.
const stall = time.Minute

func (a *API) uploadRoutes() {
	const path = "/v1/uploads/{digest}"
	put := operation(http.MethodPut, path, "put-upload", tagUploads, "Upload an input",
		"Sends the content of an input before the job that names its digest. Kept for a day if no job needs it. Send `Expect: 100-continue` to be told of a refusal before the content is sent.")
	put.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{
		"application/octet-stream": {Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}},
	}}
	put.Errors = append(put.Errors, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusServiceUnavailable, http.StatusInsufficientStorage)
	a.raw[put.Method+" "+put.Path] = true
	register(a, put, a.putUpload)

	head := operation(http.MethodHead, path, "has-upload", tagUploads, "Ask whether an input is uploaded",
		"200 if it is; it is then kept for at least an hour. 404 if not.")
	head.Errors = append(head.Errors, http.StatusNotFound)
	register(a, head, a.hasUpload)
}

type UploadPath struct {
	Digest string `path:"digest" maxLength:"200" doc:"sha256: and 64 lower-case hexadecimal digits."`
}

func (p *UploadPath) check() error {
	if err := blob.CheckDigest(p.Digest); err != nil {
		return problem.Invalid("path.digest", "%v", err)
	}
	return nil
}

type putUploadIn struct {
	UploadPath
	ByteBody
}

// ByteBody is the body of a request as it comes from the wire.
type ByteBody struct {
	from   *patient
	length int64 // -1: not said
}

// Resolve is called by huma before the handler.
func (b *ByteBody) Resolve(ctx huma.Context) []error {
	r, w := humago.Unwrap(ctx)
	b.from, b.length = &patient{r: r.Body, control: http.NewResponseController(w)}, r.ContentLength
	return nil
}

// patient gives each read a time of its own.
type patient struct {
	r       io.Reader
	control *http.ResponseController

	mu  sync.Mutex
	cut bool
}

func (p *patient) Read(b []byte) (int, error) {
	p.deadline(time.Now().Add(stall))
	n, err := p.r.Read(b)
	p.deadline(time.Time{})
	return n, err
}

func (p *patient) deadline(t time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.cut {
		_ = p.control.SetReadDeadline(t)
	}
}

// CutOff ends a read that waits, and lets no other wait: the rest of the body is not wanted.
func (p *patient) CutOff() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = true
	_ = p.control.SetReadDeadline(time.Unix(1, 0))
}

type uploadOut struct{ Body api.Upload }

func (a *API) putUpload(ctx context.Context, in *putUploadIn) (*uploadOut, error) {
	if err := in.check(); err != nil {
		return nil, err
	}
	if in.length > a.cfg.UploadLimit {
		return nil, &http.MaxBytesError{Limit: a.cfg.UploadLimit}
	}
	body := http.MaxBytesReader(nil, io.NopCloser(in.from), a.cfg.UploadLimit)
	n, err := a.cfg.Blobs.PutUpload(ctx, in.Digest, body, a.cfg.UploadLimit)
	if err != nil {
		return nil, err
	}
	return &uploadOut{api.Upload{Digest: in.Digest, Size: n}}, nil
}

type hasUploadOut struct {
	Size string `header:"Muster-Size" doc:"Bytes of the content."`
}

func (a *API) hasUpload(ctx context.Context, in *UploadPath) (*hasUploadOut, error) {
	if err := in.check(); err != nil {
		return nil, err
	}
	info, err := a.cfg.Blobs.Upload(ctx, in.Digest)
	if err != nil {
		return nil, err
	}
	return &hasUploadOut{strconv.FormatInt(info.Size, 10)}, nil
}
