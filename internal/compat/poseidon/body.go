package poseidon

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/musterhq/muster"
)

const (
	// maxBody bounds a body but that of files, which have to fit into one.
	maxBody  = 4 << 20
	maxFiles = 64 << 20
	// smallBody is what may be read by all at once; of larger ones only largeBodies, so that
	// clients together cannot fill the memory.
	smallBody   = 1 << 20
	largeBodies = 4
	// bodyTime is how long a client may take to send a body, and once more for each 8 MiB of it.
	bodyTime = 30 * time.Second
)

// bodies are those that are being read.
type bodies struct{ large chan struct{} }

func newBodies() *bodies { return &bodies{large: make(chan struct{}, largeBodies)} }

// read reads a body of JSON strictly into v: no unknown field, nothing after it. done must be
// called when v is not needed any more.
func (p *Poseidon) read(w http.ResponseWriter, r *http.Request, limit int64, v any) (done func(), err error) {
	if p.anyone() {
		// Foreign web pages can send what their forms can send; a header with a token they cannot.
		kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
		if err != nil || kind != "application/json" {
			return nil, refused(http.StatusUnsupportedMediaType, "the body is not said to be JSON; send Content-Type: application/json")
		}
	}
	raw, done, err := p.bodies.read(w, r, limit)
	if err != nil {
		return nil, err
	}
	if err := decode(raw, v); err != nil {
		done()
		return nil, err
	}
	return done, nil
}

func (b *bodies) read(w http.ResponseWriter, r *http.Request, limit int64) (raw []byte, done func(), err error) {
	if r.ContentLength > limit {
		return nil, nil, tooLarge(limit)
	}
	body := http.MaxBytesReader(w, r.Body, limit)
	control := http.NewResponseController(w)
	// Not every ResponseWriter has deadlines; those of a real connection do.
	_ = control.SetReadDeadline(time.Now().Add(bodyTime))
	defer func() { _ = control.SetReadDeadline(time.Time{}) }()
	raw, err = io.ReadAll(io.LimitReader(body, smallBody))
	if err != nil {
		return nil, nil, broken(err, limit)
	}
	if len(raw) < smallBody {
		return raw, func() {}, nil
	}
	select {
	case b.large <- struct{}{}:
	case <-r.Context().Done():
		return nil, nil, r.Context().Err()
	}
	_ = control.SetReadDeadline(time.Now().Add(bodyTime * time.Duration(1+limit/(8<<20))))
	all := bytes.NewBuffer(raw)
	if r.ContentLength > 0 {
		all.Grow(int(r.ContentLength) - len(raw) + bytes.MinRead)
	}
	if _, err := all.ReadFrom(body); err != nil {
		<-b.large
		return nil, nil, broken(err, limit)
	}
	return all.Bytes(), func() { <-b.large }, nil
}

func tooLarge(limit int64) error {
	return refused(http.StatusRequestEntityTooLarge, "the body has more than %s, which is the most that this request may have", muster.Bytes(limit))
}

func broken(err error, limit int64) error {
	var large *http.MaxBytesError
	var late net.Error
	switch {
	case errors.As(err, &large):
		return tooLarge(limit)
	case errors.As(err, &late) && late.Timeout():
		return refused(http.StatusRequestTimeout, "the body did not come in time")
	}
	return refused(http.StatusBadRequest, "the body broke off")
}

// decode is strict, but takes null for "left out", as clients written in Go send it for an empty
// list.
func decode(raw []byte, v any) error {
	bad := func(at int64, format string, args ...any) error {
		line := 1 + bytes.Count(raw[:min(max(at-1, 0), int64(len(raw)))], []byte("\n"))
		return refused(http.StatusBadRequest, "the body, line %d: "+format, append([]any{line}, args...)...)
	}
	switch {
	case len(bytes.TrimSpace(raw)) == 0:
		return refused(http.StatusBadRequest, "the body is empty; send a JSON object")
	case !utf8.Valid(raw):
		return refused(http.StatusBadRequest, "the body is not UTF-8 text")
	case bytes.TrimSpace(raw)[0] != '{':
		return bad(1, "is no JSON object")
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	// Fields that nobody knows are ignored, as Poseidon does: its own clients send more than it
	// reads (the id of an environment, for one).
	err := dec.Decode(v)
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return bad(syntax.Offset, "%s", syntax)
	case errors.As(err, &kind):
		return bad(kind.Offset, "%s is a %s, and should be %s", clip(kind.Field), clip(kind.Value), kind.Type)
	case err == io.ErrUnexpectedEOF:
		return bad(int64(len(raw)), "it ends in the middle")
	case err != nil:
		return bad(dec.InputOffset(), "%s", clip(strings.TrimPrefix(err.Error(), "json: ")))
	}
	if _, err := dec.Token(); err != io.EOF {
		return bad(dec.InputOffset()+1, "something follows the object")
	}
	return nil
}
