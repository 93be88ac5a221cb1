//go:build !lean

package main

import (
	"github.com/musterhq/muster/cmd/muster/internal/serve"
	"github.com/musterhq/muster/internal/blob/buckets"
	"github.com/musterhq/muster/internal/cloud/clouds"
)

// drivers: a server may keep blobs in a bucket, and create machines in clouds. See blob.url and
// providers of its configuration.
var drivers = serve.Drivers{Bucket: buckets.Open, Cloud: clouds.Open}
