//go:build lean

package main

import "github.com/musterhq/muster/cmd/muster/internal/serve"

// drivers are none: a lean program opens no buckets and creates no machines in clouds.
var drivers serve.Drivers
