//go:build !lean

package main

// A server may keep blobs in a bucket: see blob.url of its configuration.
import _ "github.com/musterhq/muster/internal/blob/buckets"
