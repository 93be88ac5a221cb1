package poseidon

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

// note marks the claims that were made here. Only their runners can be used here: the token of this
// API is not meant to open those that others have claimed.
const note = "poseidon"

// releaseTime bounds giving back a runner whose client is not there any more.
const releaseTime = 10 * time.Second

// runnerRequest asks for a runner.
type runnerRequest struct {
	ExecutionEnvironmentID *int `json:"executionEnvironmentId"`
	// InactivityTimeout is in seconds; 0: none.
	InactivityTimeout int64 `json:"inactivityTimeout"`
}

// runner is one that was provided.
type runner struct {
	RunnerID    string       `json:"runnerId"`
	MappedPorts []mappedPort `json:"mappedPorts"`
}

type mappedPort struct {
	ExposedPort int    `json:"exposedPort"`
	HostAddress string `json:"hostAddress"`
}

func (p *Poseidon) provide(w http.ResponseWriter, r *http.Request) error {
	var want runnerRequest
	done, err := p.read(w, r, maxBody, &want)
	if err != nil {
		return err
	}
	done()
	if want.ExecutionEnvironmentID == nil {
		return refused(http.StatusBadRequest, "executionEnvironmentId is missing")
	}
	idle, err := seconds("inactivityTimeout", want.InactivityTimeout, api.MaxClaimTime)
	if err != nil {
		return err
	}
	id := *want.ExecutionEnvironmentID
	if id < 0 || p.environment(id) == nil {
		return noEnvironment(id)
	}
	forever := api.Duration(0)
	c, err := p.cfg.Claims.Claim(r.Context(), &api.ClaimRequest{
		Namespace: p.cfg.Namespace, Environment: strconv.Itoa(id), Idle: &idle, TTL: &forever, Wait: api.Duration(p.cfg.Wait), Note: note,
	}, "")
	if err != nil {
		return err
	}
	if err := r.Context().Err(); err != nil {
		// Nobody will ever know its id, and it may have no time-out.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), releaseTime)
		defer cancel()
		if err := p.cfg.Claims.Release(ctx, string(c.Runner)); err != nil {
			p.logger.Warn("the runner of a client that disconnected was not released", "runner", c.Runner, "error", err)
		}
		return err
	}
	tell(w, http.StatusOK, runner{string(c.Runner), p.mapPorts(r, c)})
	return nil
}

// seconds is a time-out in whole seconds.
func seconds(field string, n int64, most api.Duration) (api.Duration, error) {
	if top := int64(most.Std() / time.Second); n < 0 || n > top {
		return 0, refused(http.StatusBadRequest, "%s is %d; it is 0 (none) to %d seconds", field, n, top)
	}
	return api.Duration(time.Duration(n) * time.Second), nil
}

// onRunner answers for a runner that is claimed.
type onRunner func(w http.ResponseWriter, r *http.Request, c *state.Claim) error

// held hands on the claim that has the runner of a request, whose use this is.
func (p *Poseidon) held(h onRunner) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		c, err := p.claimed(r.PathValue("runner"))
		if err != nil {
			return err
		}
		end := p.cfg.Claims.Use(c.ID)
		defer end()
		err = h(w, r, c)
		if err == nil {
			return nil
		}
		// What goes wrong when a runner goes has many forms, and one reason.
		var a *answer
		if !errors.As(err, &a) {
			if _, gone := p.claimed(string(c.Runner)); gone != nil {
				return gone
			}
		}
		return err
	}
}

func (p *Poseidon) claimed(id string) (*state.Claim, error) {
	c, err := p.cfg.Claims.Claimed(id)
	if err != nil {
		return nil, err
	}
	if c.Note != note || c.Env.Namespace != muster.Namespace(p.cfg.Namespace) {
		return nil, refused(http.StatusGone, "runner %s was not provided here", clip(id))
	}
	return c, nil
}

func (p *Poseidon) release(w http.ResponseWriter, r *http.Request, c *state.Claim) error {
	if err := p.cfg.Claims.Release(r.Context(), string(c.Runner)); err != nil {
		return fmt.Errorf("runner %s: %w", c.Runner, err)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
