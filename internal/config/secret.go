package config

import (
	"slices"
	"strings"

	"github.com/musterhq/muster/api"
)

// masked stands for a value that is not shown.
const masked = "***"

// Masked is the configuration as it may be shown: the environment and the arguments of providers' programs, where the credentials of
// clouds are, are stars, as the fields of type Secret are by themselves.
func Masked(s *api.ServerConfig) *api.ServerConfig {
	c := *s
	c.Providers = slices.Clone(s.Providers)
	for i := range c.Providers {
		p := &c.Providers[i]
		if len(p.Env) > 0 {
			env := make(map[string]string, len(p.Env))
			for k := range p.Env {
				env[k] = masked
			}
			p.Env = env
		}
		p.Command = slices.Clone(p.Command)
		for j := 1; j < len(p.Command); j++ {
			p.Command[j] = masked
		}
	}
	return &c
}

// maskedField reports whether what is in a field, by its name in a Change, is masked.
func maskedField(field string) bool {
	_, rest, ok := strings.Cut(field, "].")
	return ok && strings.HasPrefix(field, "providers[") && (strings.HasPrefix(rest, "env.") || rest == "command")
}

// hide makes a change one that may be shown, and reports whether it is one at all: what the running server has masked
// cannot be compared.
func hide(c *Change) bool {
	if !maskedField(c.Field) {
		return true
	}
	star := words(masked)
	if c.From == star || c.To == star || strings.Contains(c.From, star) != strings.Contains(c.To, star) {
		return c.From == "" || c.To == ""
	}
	for _, text := range []*string{&c.From, &c.To} {
		if *text != "" {
			*text = masked
		}
	}
	return true
}
