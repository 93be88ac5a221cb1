// Package clouds makes the providers of clouds from their configuration. It is the one place that
// knows all drivers, so a program that does not import it links none of their libraries.
//
// It must never ask a cloud anything: the configuration is checked by package config, and what a cloud
// says to it by the provider's Resolve.
package clouds

import (
	"fmt"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/qemu"
)

// Open is a cloud.Opener.
func Open(spec *api.ProviderSpec, env cloud.Env) (cloud.Provider, error) {
	user, shutdown := "", ""
	if spec.SSH != nil {
		user, shutdown = spec.SSH.User, spec.SSH.Shutdown
	}
	name := muster.ProviderName(spec.Name)
	switch spec.Type {
	case api.ProviderQemu:
		return qemu.New(qemu.Config{
			Name: name, Owner: env.Owner, Dir: env.Dir, Image: spec.Image, Offerings: env.Offerings, Accelerator: spec.Accelerator,
			User: user, KeyFile: env.KeyFile, Shutdown: shutdown, Logger: env.Logger,
		})
	}
	return nil, fmt.Errorf("type %s has no driver in this version", spec.Type)
}
