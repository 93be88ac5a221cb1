package door

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/problem"
)

// MaxBody bounds every JSON body, in bytes. A job of api.MaxSpecBytes fits with room to spare.
const MaxBody = 2 << 20

// Body returns the JSON body of a request, which the door has read whole; nil if there is none.
func Body(r *http.Request) []byte {
	if in, ok := r.Body.(*buffered); ok {
		return in.all
	}
	return nil
}

// bodyTimeout is how long a client may take to send a JSON body.
const bodyTimeout = 30 * time.Second

// checkRequest checks what is the same for every route: the query can be read and has nothing
// twice, and the body has the right content type. A JSON body is read whole; the handler finds it
// with Body. A body of bytes is left to the handler.
func (d *Door) checkRequest(w http.ResponseWriter, r *http.Request, pattern string) *problem.Problem {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return problem.New(http.StatusBadRequest, string(muster.FaultInvalid), "the query cannot be read", api.ProblemField{Location: "query", Message: problem.Clip(err.Error())})
	}
	var twice []api.ProblemField
	for k, v := range query {
		if len(v) > 1 {
			twice = append(twice, api.ProblemField{Location: "query." + problem.Clip(k), Message: fmt.Sprintf("is given %d times", len(v))})
		}
	}
	if len(twice) > 0 {
		slices.SortFunc(twice, func(a, b api.ProblemField) int { return strings.Compare(a.Location, b.Location) })
		return problem.Wrong(twice)
	}
	switch {
	case r.Method == http.MethodGet || r.Method == http.MethodHead:
		return nil // a body has no meaning there
	case d.bytes[pattern] && r.Header.Get("Content-Type") == "application/x-tar":
		return checkContentType(r, "application/x-tar", false) // an archive's own name
	case d.bytes[pattern]:
		return checkContentType(r, "application/octet-stream", true)
	case r.ContentLength == 0:
		r.Body = &buffered{Reader: bytes.NewReader(nil)}
		return nil
	}
	if p := checkContentType(r, "application/json", false); p != nil {
		return p
	}
	return readBody(w, r)
}

// checkContentType refuses every content type but the one. Forms of foreign web pages can send
// three types without asking, and none of those is ever the one. A type may be missing where the
// body is bytes.
func checkContentType(r *http.Request, want string, mayMiss bool) *problem.Problem {
	given := r.Header.Get("Content-Type")
	refuse := func(what string) *problem.Problem {
		how := "-H 'Content-Type: " + want + "'"
		p := problem.New(http.StatusUnsupportedMediaType, string(muster.FaultInvalid), fmt.Sprintf("%s; this request takes %s (with curl: %s)", what, want, how))
		p.Headers.Set("Accept", want)
		return p
	}
	if enc := r.Header.Get("Content-Encoding"); enc != "" && enc != "identity" {
		return refuse(fmt.Sprintf("the body has the content encoding %q", problem.Clip(enc)))
	}
	if given == "" {
		if mayMiss {
			return nil
		}
		return refuse("the body has no content type")
	}
	kind, params, err := mime.ParseMediaType(given)
	charset := strings.ToLower(params["charset"])
	if err != nil || kind != want || len(r.Header.Values("Content-Type")) > 1 || charset != "" && charset != "utf-8" {
		return refuse(fmt.Sprintf("the body has the content type %q", problem.Clip(given)))
	}
	return nil
}

// buffered is a body that has been read whole.
type buffered struct {
	*bytes.Reader
	all []byte
}

func (*buffered) Close() error { return nil }

// readBody reads a JSON body before any handler runs. Whatever goes wrong on the wire is the
// client's doing and gets a 4xx, and no handler has to tell it from an error of its own.
func readBody(w http.ResponseWriter, r *http.Request) *problem.Problem {
	if r.ContentLength > MaxBody {
		return problem.Of(&http.MaxBytesError{Limit: MaxBody})
	}
	all, p := ReadWhole(w, r)
	if p == nil {
		r.Body = &buffered{Reader: bytes.NewReader(all), all: all}
	}
	return p
}

// ReadWhole reads a body of at most MaxBody bytes to its end, within the time that a client has for it.
func ReadWhole(w http.ResponseWriter, r *http.Request) ([]byte, *problem.Problem) {
	control := http.NewResponseController(w)
	// Not every ResponseWriter has deadlines; those of a real connection do.
	_ = control.SetReadDeadline(time.Now().Add(bodyTimeout))
	all, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBody))
	_ = control.SetReadDeadline(time.Time{})
	if err != nil {
		return nil, BrokenBody(err, bodyTimeout)
	}
	return all, nil
}

// BrokenBody makes a problem of the error by which the reading of a body ended. within is the time
// that the client had for it.
func BrokenBody(err error, within time.Duration) *problem.Problem {
	var late net.Error
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return problem.Of(err)
	case errors.As(err, &late) && late.Timeout():
		return problem.New(http.StatusRequestTimeout, string(muster.FaultInvalid), fmt.Sprintf("the body did not come within %s", within))
	case errors.Is(err, context.Canceled):
		return problem.Of(err)
	}
	return problem.New(http.StatusBadRequest, string(muster.FaultInvalid), "the body broke off", api.ProblemField{Location: "body", Message: problem.Clip(err.Error())})
}
