//go:build lean

package main

import "github.com/musterhq/muster/cmd/muster/internal/serve"

// drivers are none: a lean program opens no buckets, creates no machines in clouds, and has no identity there.
var drivers serve.Drivers
