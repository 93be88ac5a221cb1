package submit

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/blob"
	"github.com/musterhq/muster/internal/problem"
)

// usualUploadLimit is the most bytes that an upload may have, if the configuration of a Service
// does not say.
const usualUploadLimit = 4 << 30

// Uploads is the store of inputs that are sent ahead of jobs. Errors are faults.
type Uploads interface {
	// PutUpload stores what r has under its digest, and returns how many bytes that are. The
	// content must have the digest and at most limit bytes.
	PutUpload(ctx context.Context, digest string, r io.Reader, limit int64) (int64, error)
	// Upload tells whether an upload is here, and keeps it for a while if it is. Fault: not-found.
	Upload(ctx context.Context, digest string) (blob.Info, error)
}

// Upload stores the content of an input before the job that names its digest. length is how many
// bytes the client says that it has, or -1: one that is too long is refused before it is read.
func (s *Service) Upload(ctx context.Context, digest string, length int64, content io.Reader) (*api.Upload, error) {
	if err := checkDigest(digest); err != nil {
		return nil, err
	}
	if length > s.cfg.UploadLimit {
		return nil, &http.MaxBytesError{Limit: s.cfg.UploadLimit}
	}
	body := http.MaxBytesReader(nil, io.NopCloser(content), s.cfg.UploadLimit)
	n, err := s.cfg.Uploads.PutUpload(ctx, digest, body, s.cfg.UploadLimit)
	if err != nil {
		return nil, err
	}
	return &api.Upload{Digest: digest, Size: n}, nil
}

// Uploaded returns the size of an upload in bytes, and keeps it for at least an hour. A client asks
// before it sends a large input again.
func (s *Service) Uploaded(ctx context.Context, digest string) (size int64, err error) {
	if err := checkDigest(digest); err != nil {
		return 0, err
	}
	info, err := s.cfg.Uploads.Upload(ctx, digest)
	return info.Size, err
}

func checkDigest(digest string) error {
	if err := blob.CheckDigest(digest); err != nil {
		return problem.Invalid("path.digest", "%v", err)
	}
	return nil
}

// missingUploads tells which inputs of a spec have not been uploaded.
func (s *Service) missingUploads(ctx context.Context, spec *api.JobSpec) ([]api.ProblemField, error) {
	var problems []api.ProblemField
	asked := map[string]bool{}
	for i := range spec.Inputs {
		in := &spec.Inputs[i]
		if in.Digest == "" || in.URL != "" || asked[in.Digest] {
			continue
		}
		asked[in.Digest] = true
		_, err := s.cfg.Uploads.Upload(ctx, in.Digest)
		switch {
		case muster.IsKind(err, muster.FaultNotFound):
			problems = append(problems, api.ProblemField{
				Location: "inputs[" + strconv.Itoa(i) + "].digest",
				Message:  "has not been uploaded, or so long ago that it was deleted; send the content with PUT /v1/uploads/" + in.Digest + " first",
			})
		case err != nil:
			return nil, fmt.Errorf("inputs[%d]: %w", i, err)
		}
	}
	return problems, nil
}
