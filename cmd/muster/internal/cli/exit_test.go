package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/locate"
)

// Scripts tell by the exit code what happened, whatever wraps the error on its way.
func TestExitCodes(t *testing.T) {
	plain := errors.New("broken")
	refused := func(status int, code string) error {
		return &api.Problem{Status: status, Title: http.StatusText(status), Detail: "broken", Code: code}
	}
	for _, tt := range []struct {
		err  error
		code int
		text string
	}{
		{plain, ExitFailed, "broken"},
		{Failure(plain), ExitFailed, "broken"},
		{Usage(plain), ExitUsage, "broken"},
		{fmt.Errorf("job x: %w", Usage(plain)), ExitUsage, "job x: broken"},
		{Usage(WithHint(plain, "mend it")), ExitUsage, "broken; mend it"},
		{WithHint(Usage(plain), "mend it"), ExitUsage, "broken; mend it"},
		{ExitWith(ExitTimeout, plain), ExitTimeout, "broken"},
		{ExitSilently(7), 7, ""},
		{ErrInterrupted, ExitInterrupted, ""},
		{fmt.Errorf("reading: %w", context.Canceled), ExitInterrupted, ""},
		{locate.ErrContext, ExitUsage, locate.ErrContext.Error()},
		{locate.ErrUnknown, ExitUnreachable, locate.ErrUnknown.Error()},
		{refused(http.StatusNotFound, "not-found"), ExitFailed, "broken"},
		{refused(http.StatusBadRequest, ""), ExitUsage, "broken"},
		{refused(http.StatusUnprocessableEntity, ""), ExitUsage, "broken"},
		{refused(http.StatusForbidden, "invalid"), ExitUsage, "broken"},
		{refused(http.StatusUnauthorized, ""), ExitAuth, "broken; the token of a server is in its data directory: give --data-dir, or MUSTER_TOKEN"},
		{refused(http.StatusBadGateway, api.CodeSandbox), ExitUnreachable, "broken; what was attached has ended with it"},
	} {
		if code, text := explain(tt.err); code != tt.code || text != tt.text {
			t.Errorf("%v: %d, %q; want %d, %q", tt.err, code, text, tt.code, tt.text)
		}
	}
}
