package httpapi

import (
	"context"
	"net/http"
	"strconv"

	"github.com/musterhq/muster/api"
)

// uploadHandlers handle inputs that are sent before the jobs that need them.
type uploadHandlers struct{ *API }

func (a uploadHandlers) routes() {
	const path = "/v1/uploads/{digest}"
	put := operation(http.MethodPut, path, "put-upload", tagUploads, "Upload an input",
		"Sends the content of an input before the job that names its digest. Kept for a day if no job needs it. Send `Expect: 100-continue` to get a refusal before the content is sent.")
	put.RequestBody = byteBody()
	put.Errors = append(put.Errors, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusServiceUnavailable, http.StatusInsufficientStorage)
	a.cfg.Door.TakeBytes(put.Method + " " + put.Path)
	register(a.API, put, a.putUpload)

	head := operation(http.MethodHead, path, "has-upload", tagUploads, "Ask whether an input is uploaded",
		"200 if it is; it is then kept for at least an hour. 404 if not.")
	head.Errors = append(head.Errors, http.StatusNotFound)
	register(a.API, head, a.hasUpload)
}

// UploadPath names an upload in the path.
type UploadPath struct {
	Digest string `path:"digest" maxLength:"200" doc:"sha256: and 64 lower-case hexadecimal digits."`
}

type putUploadIn struct {
	UploadPath
	ByteBody
}

type uploadOut struct{ Body api.Upload }

func (a uploadHandlers) putUpload(ctx context.Context, in *putUploadIn) (*uploadOut, error) {
	up, err := a.cfg.Submit.Upload(ctx, in.Digest, in.length, in.from)
	if err != nil {
		return nil, err
	}
	return &uploadOut{*up}, nil
}

type hasUploadOut struct {
	Size string `header:"Muster-Size" doc:"Bytes of the content."`
}

func (a uploadHandlers) hasUpload(ctx context.Context, in *UploadPath) (*hasUploadOut, error) {
	size, err := a.cfg.Submit.Uploaded(ctx, in.Digest)
	if err != nil {
		return nil, err
	}
	return &hasUploadOut{strconv.FormatInt(size, 10)}, nil
}
