//go:build !lean

package main

import (
	"github.com/musterhq/muster/internal/blob"
	"github.com/musterhq/muster/internal/blob/buckets"
)

// openBucket: a server may keep blobs in a bucket. See blob.url of its configuration.
var openBucket blob.Opener = buckets.Open
