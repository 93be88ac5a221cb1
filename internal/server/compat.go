package server

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/compat/poseidon"
	"github.com/musterhq/muster/internal/config"
)

// mountCompat adds the APIs of other systems that the configuration asks for. They use the same
// services and the same door as the HTTP API, so that limits and authorization are the same. It
// runs once, before the server listens to requests: a change of the configuration here needs a
// restart.
func (s *Server) mountCompat(services *services) error {
	c := s.cfg.Compat.Poseidon
	if c == nil {
		return nil
	}
	token, err := poseidonToken(c)
	if err != nil {
		return err
	}
	p, err := poseidon.New(poseidon.Config{
		State: s.state, Door: services.door, Claims: services.claims, Inside: services.inside, Submit: services.submit, Stopping: services.stopping, Version: s.opts.Version, Token: token, Namespace: c.Namespace, Wait: time.Duration(c.Wait), MemoryReserve: c.MemoryReserve, Logger: s.log})
	if err != nil {
		return err
	}
	services.door.Mount(p.Mount())
	return nil
}

// poseidonToken is the token that clients of that API send; empty means the server's own token. The
// file is read once at the start.
func poseidonToken(c *api.PoseidonConfig) (muster.Secret, error) {
	if c.TokenFile == "" {
		return c.Token, nil
	}
	b, err := os.ReadFile(c.TokenFile)
	if err != nil {
		return muster.Secret{}, fmt.Errorf("compat.poseidon.token_file: %w", err)
	}
	// The token is sent in a header, so it must not have spaces or control characters.
	token := strings.TrimSpace(string(b))
	if len(token) < config.MinToken || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return muster.Secret{}, fmt.Errorf("compat.poseidon.token_file: %s has no token; it is one line of at least %d characters of ASCII, without spaces", c.TokenFile, config.MinToken)
	}
	return muster.NewSecret(token), nil
}
