//go:build !lean

package main

import (
	"github.com/musterhq/muster/cmd/muster/internal/serve"
	"github.com/musterhq/muster/internal/blob/buckets"
	"github.com/musterhq/muster/internal/cloud/clouds"
	"github.com/musterhq/muster/internal/registry/identities"
)

// drivers: a server may keep blobs in a bucket, create machines in clouds, and pull from registries
// by its identity in a cloud. See blob.url, providers and registries of its configuration.
var drivers = serve.Drivers{Bucket: buckets.Open, Cloud: clouds.Open, Identity: identities.Open}
