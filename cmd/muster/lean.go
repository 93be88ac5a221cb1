//go:build lean

package main

import "github.com/musterhq/muster/internal/blob"

// openBucket is nil: a lean program has no drivers of buckets.
var openBucket blob.Opener
