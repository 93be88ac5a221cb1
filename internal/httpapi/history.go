package httpapi

import (
	"context"
	"net/http"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/history"
)

// historyHandlers show jobs that have ended, also after the state has forgotten them.
type historyHandlers struct{ *API }

func (a historyHandlers) routes() {
	list := operation(http.MethodGet, "/v1/history", "list-history", tagHistory, "List ended jobs", history.ListDescription)
	list.Errors = append(list.Errors, http.StatusUnprocessableEntity, http.StatusServiceUnavailable)
	register(a.API, list, func(_ context.Context, in *history.Query) (*struct{ Body *api.History }, error) {
		page, err := a.cfg.History.List(in)
		return &struct{ Body *api.History }{page}, err
	})
	one := operation(http.MethodGet, "/v1/history/{id}", "get-history", tagHistory, "Show an ended job", "With its attempts, by member and attempt.")
	one.Errors = append(one.Errors, http.StatusNotFound, http.StatusUnprocessableEntity, http.StatusServiceUnavailable)
	register(a.API, one, func(_ context.Context, in *history.One) (*struct{ Body *api.EndedJobDetail }, error) {
		job, err := a.cfg.History.Show(in)
		return &struct{ Body *api.EndedJobDetail }{job}, err
	})
}
