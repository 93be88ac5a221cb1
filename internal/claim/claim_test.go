package claim

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

// refusing takes no facts.
type refusing struct{}

func (refusing) Propose(context.Context, state.Fact) (uint64, any, error) {
	return 0, nil, muster.Faultf(muster.FaultUnavailable, "no log")
}

func newService(t *testing.T, c Config) *Service {
	t.Helper()
	st, err := state.New(10)
	if err != nil {
		t.Fatal(err)
	}
	c.State, c.Proposer = st, refusing{}
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSecretsAreOfOneClaim(t *testing.T) {
	s := newService(t, Config{Key: muster.NewSecret("a key")})
	secret := s.Secret("c1").Reveal()
	if secret != s.Secret("c1").Reveal() || secret == s.Secret("c2").Reveal() {
		t.Error("a secret is not the same each time, or not of one claim")
	}
	if other := newService(t, Config{Key: muster.NewSecret("another")}).Secret("c1").Reveal(); other == secret {
		t.Error("a secret does not depend on the key")
	}
	for token, want := range map[string]struct {
		id           muster.ClaimID
		shown, right bool
	}{
		secret:                                 {"c1", true, true},
		secret + "0":                           {"c1", true, false},
		strings.Replace(secret, "c1", "c2", 1): {"c2", true, false},
		"mcs-":                                 {"", true, false},
		"mcs-c1":                               {"c1", true, false},
		"the server's token":                   {"", false, false},
		"":                                     {"", false, false},
	} {
		if id, shown, right := s.Holder(token); id != want.id || shown != want.shown || right != want.right {
			t.Errorf("%q: %q %v %v", token, id, shown, right)
		}
	}
}

func TestWithoutALeaderThereAreNoClaims(t *testing.T) {
	s := newService(t, Config{})
	s.Use("c1")()
	if n := s.Waiting("u"); n != 0 {
		t.Errorf("%d claims wait", n)
	}
	if _, err := s.Claimed("nobody"); err == nil {
		t.Error("a runner that does not exist is claimed")
	}
	if _, err := New(Config{State: s.cfg.State, Proposer: refusing{}, Runners: func() Runners { return nil }}); err == nil || !strings.Contains(err.Error(), "key") {
		t.Errorf("runners without a key: %v", err)
	}
}

func TestClaimsLiveWithinTheirEnvironmentsBound(t *testing.T) {
	bound := &api.EnvironmentSpec{MaxTTL: api.Duration(time.Hour)}
	for _, c := range []struct {
		spec             *api.EnvironmentSpec
		ttl, lived, want time.Duration
	}{
		{&api.EnvironmentSpec{}, 0, 0, 0},
		{&api.EnvironmentSpec{}, 5 * time.Hour, time.Hour, 5 * time.Hour},
		{bound, 0, 0, time.Hour},
		{bound, time.Minute, 0, time.Minute},
		{bound, 2 * time.Hour, 0, time.Hour},
		{bound, time.Hour, 50 * time.Minute, 10 * time.Minute},
		{bound, time.Hour, 2 * time.Hour, time.Microsecond}, // it expires at once
	} {
		if got := within(c.spec, c.ttl, c.lived); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}
