package poseidon

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

// Codes of answers with status 500 and 503.
const (
	codeUnreachable = "NOMAD_UNREACHABLE"
	codeOverload    = "NOMAD_OVERLOAD"
	codeInternal    = "NOMAD_INTERNAL_SERVER_ERROR"
	codeDepleting   = "PREWARMING_POOL_DEPLETING"
	codeUnknown     = "UNKNOWN"
)

// message is the body of every error answer.
type message struct {
	Message   string `json:"message"`
	ErrorCode string `json:"errorCode,omitempty"`
}

// answer is an error whose status is known.
type answer struct {
	status int
	message
}

func (a *answer) Error() string { return a.Message }

func refused(status int, format string, args ...any) error {
	return &answer{status, message{Message: fmt.Sprintf(format, args...)}}
}

// tell answers with JSON.
func tell(w http.ResponseWriter, status int, v any) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // of types of ours: never fails
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes())
}

// fail answers with what went wrong.
func (p *Poseidon) fail(w http.ResponseWriter, r *http.Request, err error) {
	var a *answer
	if errors.As(err, &a) {
		tell(w, a.status, a.message)
		return
	}
	p.refuse(w, p.problem(r.Context(), r.Pattern, err))
}

// refuse tells a problem of ours as Poseidon's clients read it. This is the one place where one
// becomes the other.
func (p *Poseidon) refuse(w http.ResponseWriter, pr *api.Problem) {
	out := message{Message: sentence(pr)}
	status := pr.Status
	switch {
	case status == http.StatusUnprocessableEntity:
		status = http.StatusBadRequest
	case status < 500 && status != http.StatusConflict && status != http.StatusTooManyRequests:
	case pr.Code == api.CodeNoneWarm, status == http.StatusTooManyRequests:
		status, out.ErrorCode = http.StatusInternalServerError, codeOverload
	case status == http.StatusServiceUnavailable, status == http.StatusBadGateway, pr.Code == api.CodeNotRunning:
		status, out.ErrorCode = http.StatusInternalServerError, codeUnreachable
	case status == http.StatusInsufficientStorage:
		status, out.ErrorCode = http.StatusInternalServerError, codeInternal
	default:
		status, out.ErrorCode = http.StatusInternalServerError, codeUnknown
	}
	tell(w, status, out)
}

// sentence is what a problem says in one string, with the names of fields as clients of this API
// know them.
func sentence(pr *api.Problem) string {
	if len(pr.Errors) == 0 || pr.Code != "invalid" {
		return pr.Detail
	}
	said := make([]string, 0, len(pr.Errors))
	for _, f := range pr.Errors {
		where := strings.TrimPrefix(strings.TrimPrefix(f.Location, "body."), "spec.")
		if theirs, ok := map[string]string{
			"resources.cpu": "cpuLimit", "resources.memory": "memoryLimit", "warm.max": "prewarmingPoolSize", "warm.min": "prewarmingPoolSize",
			"warm.target": "prewarmingPoolSize", "env": "environment", "timeout": "timeLimit", "idle": "inactivityTimeout", "command[2]": "command",
		}[where]; ok {
			where = theirs
		}
		if one := where + " " + f.Message; len(said) == 0 || said[len(said)-1] != one {
			said = append(said, one)
		}
	}
	return strings.Join(said, "; ")
}

// clip bounds what a request makes us repeat.
func clip(s string) string { return muster.Truncate(s, 200) }
